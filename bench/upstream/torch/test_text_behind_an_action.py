# Owner(s): ["oncall: distributed"]
from torch.distributed.pipelining.schedules import _Action
from torch.testing._internal.common_utils import TestCase, run_tests


class ScheduleTextTest(TestCase):
    def test_text_behind_an_action_is_refused(self):
        with self.assertRaises(RuntimeError):
            _Action.from_str("0F0;1F0")


if __name__ == "__main__":
    run_tests()
