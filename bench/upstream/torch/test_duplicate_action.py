# Owner(s): ["oncall: distributed"]
from torch.distributed.pipelining.schedules import _Action, _validate_schedule
from torch.testing._internal.common_utils import TestCase, run_tests


class ScheduleTextTest(TestCase):
    def test_action_that_stands_twice_is_refused(self):
        actions = [_Action.from_str(cell) for cell in ("0F0", "0F0", "0B0", "0B0")]
        with self.assertRaises(AssertionError):
            _validate_schedule({0: actions}, 1, 1, 1)


if __name__ == "__main__":
    run_tests()
