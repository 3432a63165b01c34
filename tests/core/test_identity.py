"""Whether two failures are the same, in each granularity; and the facts that this rests on."""

from __future__ import annotations

import os
import sysconfig

import msgspec
import pytest

import exportdoctor
from exportdoctor.core.failure.finding import ExceptionRecord
from exportdoctor.core.failure.frames import frames_in_text, is_local_file, is_our_file, is_user_file
from exportdoctor.core.failure.identity import (
    NameFreeSignature,
    across_parts,
    identify_across_runs,
    name_free_signature,
    same_failure,
    same_line,
)
from exportdoctor.core.failure.kinds import KIND_OF_STATUS, KINDS, FailureKind
from exportdoctor.core.failure.messages import first_line, statement, suggested_fixes, without_advice, without_hints
from exportdoctor.core.records.outcome import (
    ExceptionFact,
    Failure,
    Frame,
    OpFact,
    Outcome,
    OutcomeStatus,
    SymbolOrigin,
)
from exportdoctor.engine.cure.trial import is_later_failure
from synthetic import ATTENTION

GUARD = "Could not guard on data-dependent expression u0 > 1 (unhinted: u0 > 1).  (Size-like symbols: none)"


def failing(
    message: str = GUARD, *, line: int | None = 3, guard: int | None = None, name: str = "x", asked: str | None = None
) -> Outcome:
    def frame(number: int) -> Frame:
        source = f"if {name}:"
        return Frame(
            file="/home/a/model.py", line=number, function="forward", source=source, user=True, expression=asked
        )

    failure = Failure(
        stage="export",
        exceptions=(ExceptionFact(type="torch.GuardError", message=message),),
        frames=(frame(line),) if line else (),
        guard=frame(guard) if guard else None,
    )
    return Outcome(probe="p", status=OutcomeStatus.FAILED, failure=failure)


def died(status: OutcomeStatus, signal: str | None = None) -> Outcome:
    return Outcome(probe="p", status=status, signal=signal)


PASSED = Outcome(probe="p", status=OutcomeStatus.PASSED)


def test_the_same_line_is_the_same_failure_whatever_the_message_says() -> None:
    assert same_line(failing(), failing("Could not guard on data-dependent expression u7 + u3 > 4"))
    assert not same_line(failing(), failing(line=4))
    assert not same_line(failing(), PASSED)
    assert not same_line(PASSED, PASSED)


def test_of_one_line_the_rewritten_statement_is_the_expression_in_it_if_the_messages_are_equal() -> None:
    assert same_line(failing(asked="x > 0"), failing(asked="if x > 0: return y"))
    assert not same_line(failing(asked="x > 0"), failing("another", asked="if x > 0: return y"))
    assert not same_line(failing(asked="x > 0"), failing(asked="if x > 0: return y", line=4))
    assert not same_line(failing(asked="x > 0"), failing(asked="y > 0"))
    assert not same_line(failing(line=None, guard=7), failing(line=None, guard=77))


def test_without_a_line_to_blame_the_line_of_the_guard_counts_and_then_the_signature() -> None:
    assert same_line(failing("a", line=None, guard=7), failing("b", line=None, guard=7))
    assert not same_line(failing(line=None, guard=7), failing(line=None, guard=8))
    assert same_line(failing(line=None, guard=7), failing(line=None))
    assert not same_line(failing("a", line=None, guard=7), failing("b", line=None))


def test_a_dead_process_is_known_by_how_it_died() -> None:
    crash = died(OutcomeStatus.CRASHED, "SIGSEGV")
    assert same_line(crash, died(OutcomeStatus.CRASHED, "SIGSEGV"))
    assert not same_line(crash, died(OutcomeStatus.CRASHED, "SIGABRT"))
    assert not same_line(died(OutcomeStatus.TIMED_OUT), died(OutcomeStatus.OUT_OF_MEMORY))


def test_another_kind_at_the_same_line_is_another_failure() -> None:
    value = "Could not extract specialized integer from data-dependent expression u0"
    assert same_line(failing(), failing(value))
    assert not same_failure(failing(), failing(value), exporter="export")


def test_each_operator_of_a_line_that_has_no_translation_is_a_failure_of_its_own() -> None:
    def untranslated(name: str, *, raised: bool = True, line: int = 3) -> Outcome:
        found = failing(f"No ONNX function found for <OpOverload(op='{name}')>", line=line)
        assert found.failure is not None
        failure = msgspec.structs.replace(found.failure, stage="translate", op=OpFact(name=name, raised=raised))
        return msgspec.structs.replace(found, failure=failure)

    highest, lowest = untranslated("aten.cummax.default"), untranslated("aten.cummin.default")
    assert same_failure(highest, highest, exporter="export")
    assert not same_failure(highest, lowest, exporter="export")
    assert is_later_failure(highest, lowest, exporter="export")
    assert not is_later_failure(highest, untranslated("aten.cummin.default", line=2), exporter="export")
    failure = lowest.failure
    assert failure is not None
    other_stage = msgspec.structs.replace(lowest, failure=msgspec.structs.replace(failure, stage="decompose"))
    assert not is_later_failure(highest, other_stage, exporter="export")
    assert same_failure(highest, untranslated("aten.cummin.default", raised=False), exporter="export")


@pytest.mark.parametrize("status", KIND_OF_STATUS)
def test_a_name_free_signature_has_a_kind_and_never_a_status(status: OutcomeStatus) -> None:
    signature = name_free_signature(died(status, "SIGKILL"), exporter="export")
    assert signature is not None
    assert signature.kind is KIND_OF_STATUS[status]
    assert type(signature.kind) is FailureKind
    assert signature.kind.ends_the_process == status.ended_the_process


def test_a_time_out_is_the_same_whether_it_seems_to_wait_or_to_compute() -> None:
    waiting, computing = died(OutcomeStatus.TIMED_OUT, "hang"), died(OutcomeStatus.TIMED_OUT, "time-out")
    assert same_line(waiting, computing)
    assert not same_line(died(OutcomeStatus.CRASHED, "SIGSEGV"), died(OutcomeStatus.CRASHED, "SIGABRT"))
    assert not same_line(waiting, died(OutcomeStatus.OUT_OF_MEMORY))


def test_a_crash_that_is_a_finding_of_the_run_is_recognised() -> None:
    record = ExceptionRecord(type="SIGSEGV", message="Segmentation fault: native code touched memory not its own")
    finding = msgspec.structs.replace(ATTENTION, kind=FailureKind.CRASH, exception=record)
    crash = name_free_signature(died(OutcomeStatus.CRASHED, "SIGSEGV"), exporter="export")
    other = name_free_signature(died(OutcomeStatus.CRASHED, "SIGABRT"), exporter="export")
    hang = name_free_signature(died(OutcomeStatus.TIMED_OUT), exporter="export")
    assert crash is not None
    assert other is not None
    assert hang is not None
    assert crash.is_of_finding(finding)
    assert not other.is_of_finding(finding)
    assert not hang.is_of_finding(finding)


def test_a_message_with_other_names_is_of_the_same_finding() -> None:
    record = ExceptionRecord(type="torch.GuardError", message=GUARD.replace("u0", "u12"))
    finding = msgspec.structs.replace(ATTENTION, kind=FailureKind.DATA_DEPENDENT_GUARD, exception=record)
    signature = name_free_signature(failing(line=None), exporter="export")
    assert signature is not None
    assert signature.is_of_finding(finding)
    assert not signature.is_of_finding(msgspec.structs.replace(finding, kind=FailureKind.VMAP))


def signature_of_symbol(*, op: str | None, source: str, message: str = GUARD) -> NameFreeSignature:
    outcome = failing(message, asked="n > 1")
    assert outcome.failure is not None
    frame = Frame(file="/home/a/model.py", line=2, function="forward", source=source, user=True)
    failure = msgspec.structs.replace(outcome.failure, origins=(SymbolOrigin(symbol="u0", op=op, frame=frame),))
    found = name_free_signature(msgspec.structs.replace(outcome, failure=failure), exporter="export")
    assert found is not None
    return found


def test_a_symbol_is_known_by_the_operator_that_made_it_and_a_number_also_by_the_method_that_read_it() -> None:
    selected = signature_of_symbol(op="aten.nonzero.default", source="row = row[row != blank]")
    assert selected == signature_of_symbol(op="aten.nonzero.default", source="n = row.nonzero().shape[0]")
    read = signature_of_symbol(op="aten._local_scalar_dense.default", source="if row == blank:")
    listed = signature_of_symbol(op="aten._local_scalar_dense.default", source="n, m = row.tolist()")
    assert len({selected, read, listed}) == 3
    assert listed == signature_of_symbol(op=None, source="a = row.tolist()")


def test_whether_a_symbol_is_like_a_size_belongs_to_the_failure() -> None:
    asked = {"op": "aten.nonzero.default", "source": "n = len(row[row != blank])"}
    sized = signature_of_symbol(**asked, message=GUARD.replace("none", "u0"))
    assert sized != signature_of_symbol(**asked)
    assert sized == signature_of_symbol(**asked, message=GUARD.replace("none", "u7, u2"))


def test_a_violated_dimension_is_known_by_the_operation_that_asked_for_its_guard() -> None:
    violated = failing("Constraints violated (n)! You marked n as dynamic", line=None, guard=4)
    assert violated.failure is not None
    one, same, other = (
        msgspec.structs.replace(violated, failure=msgspec.structs.replace(violated.failure, guarded_by=asker))
        for asker in ("condition", "condition", "aten.slice")
    )
    signatures = [name_free_signature(outcome, exporter="export") for outcome in (one, same, other)]
    assert signatures[0] == signatures[1]
    assert signatures[0] != signatures[2]
    assert same_failure(one, other, exporter="export")  # in one scan the line decides


def test_a_finding_moves_by_lines_from_run_to_run_and_not_from_part_to_part() -> None:
    moved = msgspec.structs.replace(ATTENTION, line=1)
    assert identify_across_runs([moved]).keys() == identify_across_runs([ATTENTION]).keys()
    assert across_parts(moved) != across_parts(ATTENTION)
    assert across_parts(msgspec.structs.replace(ATTENTION, part="vision")) == across_parts(ATTENTION)


def test_violated_dimensions_with_guards_at_two_lines_are_two_failures() -> None:
    one, other = (
        msgspec.structs.replace(ATTENTION, line=None, guard=Frame(file="/a.py", line=line, function="f", source=""))
        for line in (1, 2)
    )
    assert across_parts(one) != across_parts(other)
    other = msgspec.structs.replace(
        one, file=None, guard=Frame(file="/a.py", line=1, function="f", source="if x.shape[1] == 10:")
    )
    one = msgspec.structs.replace(one, file=None)
    assert identify_across_runs([one]).keys().isdisjoint(identify_across_runs([other]))
    assert across_parts(one) == across_parts(msgspec.structs.replace(one, part="vision"))


def test_a_finding_of_several_modules_is_identified_in_each_and_equal_ones_are_counted() -> None:
    layers = msgspec.structs.replace(ATTENTION, module="0", modules=("0", "2"))
    first_fixed = msgspec.structs.replace(ATTENTION, module="2", modules=("2",))
    before, after = identify_across_runs([layers]), identify_across_runs([first_fixed])
    assert [key[1] for key in before.keys() - after.keys()] == ["0"]
    assert not after.keys() - before.keys()
    assert len(identify_across_runs([first_fixed, first_fixed]).keys() - after.keys()) == 1


def test_groups_of_kinds_hold_what_their_names_say() -> None:
    assert {kind for kind in KINDS if kind.is_data_dependent} == {kind for kind in KINDS if "data_dependent" in kind}
    ends = {kind for kind in KINDS if kind.ends_the_process}
    assert {kind for kind in KINDS if kind.depends_on_load} - {FailureKind.COSTLY} < ends


def test_a_kind_of_a_newer_release_keeps_its_name_and_is_in_no_group() -> None:
    kind = msgspec.json.decode(b'"curse"', type=FailureKind)
    assert kind == "curse"
    assert kind not in KINDS
    assert not kind.ends_the_process
    assert msgspec.json.encode(kind) == b'"curse"'


MESSAGE = """\
Constraints violated (n)! For more information, run with TORCH_LOGS="+dynamic".
  - Not all values of n are valid.
Suggested fixes:
  n = 6
  m = 2*n

The error above occurred when calling torch.export.export. If you would like to view some more information"""


def test_a_message_ends_where_torch_begins_to_advise() -> None:
    assert statement(MESSAGE).endswith("are valid.")
    assert without_advice(MESSAGE).endswith("m = 2*n")
    assert suggested_fixes(MESSAGE) == ["n = 6", "m = 2*n"]
    assert statement("all\n\nUser Stack (most recent call last):\n  File") == "all"


REFUSES = "  - Not all values of {0} = {1} in the specified range{2} satisfy the generated guard {3}.\n"
RANGE = (
    'Constraints violated (points)! For more information, run with TORCH_LOGS="+dynamic".\n'
    + REFUSES.format("points", "L['x'].size()[1]", "", "L['x'].size()[1] != 4")
    + REFUSES.format("points", "L['x'].size()[1]", " 4 <= s", "L['x'].size()[1] != 5")
    + REFUSES.format("rows", "L['y'].size()[1]", "", "L['y'].size()[1] // 2 != 9")
    + "Suggested fixes:\n  points = Dim('points', min=4, max=64)\n  rows = Dim('rows', max=9)\n\nThe error"
)


def test_a_suggested_end_that_another_guard_refuses_is_moved() -> None:
    """torch suggests `min=4` beside a guard that four is refused by, and raises the same again."""
    assert suggested_fixes(RANGE) == ["points = Dim('points', min=6, max=64)", "rows = Dim('rows', max=9)"]


def test_the_first_line_of_a_message() -> None:
    assert first_line("\n  one two \nthree") == "one two"
    assert first_line(ValueError("one two"), 7) == "one two"
    assert first_line(ValueError("one two three"), 9) == "one two…"
    assert first_line(ValueError("one two three"), 8) == "one two…"
    assert first_line(ValueError("one two three"), 7) == "one…"
    assert first_line(ValueError("onetwo"), 4) == "one…"
    assert first_line("") == ""
    assert first_line("Got graph break:\n  Data-dependent branch\nmore") == "Got graph break: Data-dependent branch"
    assert first_line("output 1 (0.5\n[ torch.DoubleTensor{} ]) of traced region\nmore").endswith(") of traced region")
    assert first_line('it occurred:\nTraceback (most recent call last):\n  File "/home/a/x.py"') == "it occurred:"
    assert first_line("values in (0, 1] are taken\nnot 2") == "values in (0, 1] are taken"
    assert first_line("(\n" * 500).count("(") < 400
    assert without_hints(first_line(GUARD)) == "Could not guard on data-dependent expression u0 > 1."


TORCH = "/opt/venv/lib/python3.11/site-packages/torch/export/__init__.py"


def test_whose_code_a_file_is() -> None:
    assert is_user_file("/home/a/model.py")
    assert is_user_file(TORCH.replace("torch/export", "transformers"))
    assert not is_user_file(TORCH)
    assert not is_user_file(TORCH.replace("/torch/", "/sympy/"))
    assert not is_user_file("torch/_dynamo/eval_frame.py")
    assert not is_user_file("<eval_with_key>.7")
    assert not is_user_file(os.path.join(sysconfig.get_paths()["stdlib"], "json", "decoder.py"))
    assert not is_user_file(os.path.realpath(exportdoctor.__file__))
    assert is_our_file(os.path.realpath(exportdoctor.__file__))
    assert is_local_file("/home/a/model.py")
    assert not is_local_file(TORCH.replace("torch/export", "transformers"))


def test_a_printed_stack_is_read_as_frames() -> None:
    text = 'from user code:\n  File "model.py", line 3, in forward\n    return eval(x)\n  File "b.py", line 4, in g'
    assert [(frame.file, frame.line, frame.function, frame.source) for frame in frames_in_text(text)] == [
        ("model.py", 3, "forward", "return eval(x)"),
        ("b.py", 4, "g", ""),
    ]
