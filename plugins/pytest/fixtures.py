"""Fixtures for your own tests. The first fixture in use imports torch; the start of pytest does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from .option_names import RUNS_KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gradconform.adapter import Adapter
    from gradconform.drive.user_stage import Gradients
    from gradconform.run.options import RunOptions

    from .fixture_values import BuiltStage, OutputGrads

T = TypeVar("T")


@pytest.fixture(scope="session")
def gradconform_target(pytestconfig: pytest.Config) -> Adapter:
    """Return the adapter of the target that ``--gradconform`` names; without a target the test fails.
    Example: ``def test_name(gradconform_target): assert gradconform_target.name``.

    ::

        from gradconform import StageSpec

        def test_our_own_schedule(gradconform_target, gradconform_stage):
            session = gradconform_target.open(gradconform_stage.module, StageSpec())
            session.forward(0, gradconform_stage.args())
            session.close()
    """
    runs = pytestconfig.stash.get(RUNS_KEY, None)
    if runs is None:
        pytest.fail(
            "gradconform_target requires a target; add --gradconform TARGET, or set gradconform_target in the ini file",
            pytrace=False,
        )
    return runs[0].run.target.adapter


@pytest.fixture
def gradconform_device(request: pytest.FixtureRequest) -> torch.device:
    """Return the ``torch.device`` that ``--gradconform-device`` names; the test runs once per named device.
    Example: ``def test_kernel(gradconform_device): torch.ones(3, device=gradconform_device)``.

    ::

        import torch

        def test_our_kernel(gradconform_device):
            ones = torch.ones(3, device=gradconform_device)
            assert ones.sum() == 3
    """
    from gradconform.devices.prepared import device_here, device_named  # noqa: PLC0415 (it imports torch)

    from .contract_run import choice_of  # noqa: PLC0415 (as above)

    options = _options(request.config)
    choice = _result_or_fail(lambda: choice_of(request.config, options))
    name = getattr(request, "param", choice.devices[0])
    return device_here(choice, name) if name in choice.devices else _result_or_fail(lambda: device_named(name))


@pytest.fixture
def gradconform_dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Return the ``torch.dtype`` that ``--gradconform-dtype`` names; the test runs once per named dtype.
    Example: ``def test_cast(gradconform_dtype): torch.ones(3, dtype=gradconform_dtype)``.

    ::

        import torch

        def test_our_cast(gradconform_dtype):
            assert torch.ones(3, dtype=gradconform_dtype).dtype == gradconform_dtype
    """
    from gradconform.devices.dtypes import dtype_named  # noqa: PLC0415 (it imports torch)

    from .contract_run import choice_of  # noqa: PLC0415 (as above)

    options = _options(request.config)
    choice = _result_or_fail(lambda: choice_of(request.config, options))
    return _result_or_fail(lambda: dtype_named(getattr(request, "param", choice.cells[0][1])))


def _options(config: pytest.Config) -> RunOptions:
    from .options import options_of  # noqa: PLC0415 (a session without these fixtures needs none)

    return options_of(config).run


def _result_or_fail(find: Callable[[], T]) -> T:
    """Return the result of ``find``; a device or dtype that cannot be used fails the test with the kit's message."""
    try:
        return find()
    except ValueError as error:
        from gradconform.text.escaping import for_terminal  # noqa: PLC0415 (only a message needs it)

        pytest.fail(for_terminal(str(error)), pytrace=False)


@pytest.fixture
def gradconform_rng(request: pytest.FixtureRequest) -> torch.Generator:
    """Return a CPU generator, seeded only from ``--gradconform-seed`` and the test's node id.
    Example: ``def test_draw(gradconform_rng): torch.randn(3, generator=gradconform_rng)``.

    ::

        import torch

        def test_our_own_draw(gradconform_rng):
            x = torch.randn(3, 5, generator=gradconform_rng)
            assert x.shape == (3, 5)
    """
    import torch  # noqa: PLC0415 (start-up needs none)

    from gradconform.trial.materials import stable_seed  # noqa: PLC0415 (it imports torch)

    seed = stable_seed(_options(request.config).seed, request.node.nodeid)
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def gradconform_stage(
    request: pytest.FixtureRequest, gradconform_device: torch.device, gradconform_dtype: torch.dtype
) -> BuiltStage:
    """Build a stage of the zoo; the test runs once per stage, or once per stage that the marker selects.
    Example: ``def test_forward(gradconform_stage): gradconform_stage.module(*gradconform_stage.args())``.

    ``.module`` is the stage, and ``.args(mb)`` returns the arguments of a micro-batch. ``.name`` and ``.traits``
    describe the stage, and ``.fresh()`` returns another module with the same parameters. The marker
    ``gradconform_stages`` selects stages by globs over names and traits; ``without`` excludes some. A stage that cannot
    run in the dtype is skipped. ::

        import pytest

        @pytest.mark.gradconform_stages("mlp*", "multi_output", without=("complex", "nested_output"))
        def test_forward_runs(gradconform_stage):
            outputs = gradconform_stage.module(*gradconform_stage.args())
            assert outputs is not None
    """
    from .fixture_values import BuiltStage  # noqa: PLC0415 (it imports torch)

    seed = _options(request.config).seed
    try:
        stage = BuiltStage(request.param, device=gradconform_device, dtype=gradconform_dtype, seed=seed)
        stage.args()
    except NotImplementedError as error:
        pytest.skip(f"stage {request.param.name} cannot run in {gradconform_dtype}: {error}")
    return stage


@pytest.fixture
def gradconform_output_grads(request: pytest.FixtureRequest, gradconform_stage: BuiltStage) -> OutputGrads:
    """Make output gradients for ``gradconform_stage``; the test runs once per stage and pattern.
    Example: ``def test_pattern(gradconform_output_grads): assert gradconform_output_grads.pattern``.

    Call it with the outputs. It returns one gradient or None per output, in a tuple or in the structure of the outputs.
    The patterns are: normal values; zeros; None at each position that allows it, and at all of them; and gradients
    that are transposed, strided or expanded in memory. The marker ``gradconform_patterns`` selects patterns by globs.
    It can also request wrong patterns (``short``, ``long``, ``shape``, …, see
    ``gradconform.fixtures.grad_tuples``). ::

        import pytest

        @pytest.mark.gradconform_stages("two-outputs")
        @pytest.mark.gradconform_patterns("none:0", "only:*", "layout:*")
        def test_one_gradient_per_output(gradconform_stage, gradconform_output_grads):
            outputs = gradconform_stage.module(*gradconform_stage.args())
            grads = gradconform_output_grads(outputs)
            assert len(grads) == len(outputs)
    """
    from .fixture_values import OutputGrads  # noqa: PLC0415 (it imports torch)

    seed = _options(request.config).seed
    return OutputGrads(request.param, stage=gradconform_stage.name, device=gradconform_stage.device, seed=seed)


@pytest.fixture(params=(1, 3, 10), ids="{}mb".format)
def gradconform_microbatches(request: pytest.FixtureRequest) -> int:
    """Return a number of micro-batches; the test runs with 1, 3 and 10.
    Example: ``def test_queue(gradconform_microbatches): assert gradconform_microbatches in (1, 3, 10)``.

    ::

        def test_our_queue(gradconform_microbatches):
            assert len(range(gradconform_microbatches)) in (1, 3, 10)
    """
    return int(request.param)


@pytest.fixture
def gradconform_oracle() -> Callable[..., Gradients]:
    """Return plain autograd as a function of a stage, arguments and output gradients (``autograd_gradients``).
    Example: ``def test_plain(gradconform_oracle): gradconform_oracle(torch.nn.ReLU(), torch.ones(3), torch.ones(3))``.

    It runs on copies. The result has ``.inputs``, one gradient or None per argument, and ``.params``, gradients by
    name. For several micro-batches, pass a list of argument tuples and a list of output gradients. ::

        import pytest
        import torch

        @pytest.mark.gradconform_stages("mlp")
        def test_gradients_are_torchs(gradconform_stage, gradconform_oracle):
            args = gradconform_stage.args()
            outputs = gradconform_stage.module(*args)
            wanted = gradconform_oracle(gradconform_stage.module, args, torch.ones_like(outputs))
            outputs.sum().backward()
            assert torch.equal(args[0].grad, wanted.inputs[0])
            assert torch.equal(gradconform_stage.module[0].weight.grad, wanted.params["0.weight"])
    """
    from gradconform.drive.user_stage import autograd_gradients  # noqa: PLC0415 (it imports torch)

    return autograd_gradients


@pytest.fixture
def assert_matches_autograd() -> Callable[..., None]:
    """Compare your backward with plain autograd; see ``gradconform.assert_matches_autograd``.
    Example: ``def test_ours(assert_matches_autograd): assert_matches_autograd(backward, stage, args, output_grads)``.

    The first argument is a callable that runs forward and backward, or the gradients that your backward returned. The
    failure message shows the path of each wrong tensor and the index of its worst element. For that element it shows
    the expected value, the value it got, the error, the bound and error/bound. ::

        import pytest

        def our_backward(stage, args, output_grads):
            outputs = stage(*args)
            outputs.backward(output_grads[0])
            return tuple(arg.grad for arg in args)

        @pytest.mark.gradconform_stages("mlp*", "residual")
        @pytest.mark.gradconform_patterns("normal", "layout:*")
        def test_our_backward(gradconform_stage, gradconform_output_grads, assert_matches_autograd):
            stage, args = gradconform_stage.module, gradconform_stage.args()
            grads = gradconform_output_grads(stage(*args))
            assert_matches_autograd(our_backward, stage, args, grads)
    """
    from gradconform.judge.matching import assert_matches_autograd  # noqa: PLC0415 (it imports torch)

    return assert_matches_autograd
