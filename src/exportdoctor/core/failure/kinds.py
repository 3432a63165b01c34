"""The kinds of failure, and the table of rules by which a failure gets its kind.

A kind says what the tracer was asked and could not answer. It does not depend on the exporter: the same failure in
non-strict export, in strict export and in TorchScript has one kind wherever their messages allow it. The first rule
that fits decides, so specific rules come first. Each rule names why it holds and the torch releases it was seen in.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from exportdoctor.core.failure.messages import LEAKED_CONSTANT
from exportdoctor.core.records.outcome import OutcomeStatus


class FailureKind(StrEnum):
    """What kind of failure it is; the values stand in reports, and each has an entry in data/explanations.yaml."""

    DATA_DEPENDENT_VALUE = "data_dependent_value"
    DATA_DEPENDENT_GUARD = "data_dependent_guard"
    DYNAMIC_DIM_SPECIALISED = "dynamic_dim_specialised"
    DIMS_RELATED = "dims_related"
    INVALID_DYNAMIC_SHAPES = "invalid_dynamic_shapes"
    UNREGISTERED_PYTREE = "unregistered_pytree"
    MISSING_FAKE_KERNEL = "missing_fake_kernel"
    WRONG_FAKE_KERNEL = "wrong_fake_kernel"
    VMAP = "vmap"
    UNSUPPORTED_PYTHON = "unsupported_python"
    ATTRIBUTE_MUTATION = "attribute_mutation"
    INPUT_MUTATION = "input_mutation"
    AUTOGRAD_STATE = "autograd_state"
    DEVICE_MISMATCH = "device_mismatch"
    TORCHSCRIPT_TRACE = "torchscript_trace"
    PYTHON_ERROR = "python_error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    COSTLY = "costly"
    TRANSLATE = "translate"
    LOAD = "load"
    RUN = "run"
    NUMBERS = "numbers"

    @classmethod
    def _missing_(cls, value: object) -> FailureKind | None:
        """A kind that only a newer release knows, read from its report: it keeps its name and is in no group."""
        if not isinstance(value, str):
            return None
        kind = str.__new__(cls, value)
        kind._name_, kind._value_ = value.upper(), value
        return kind

    @property
    def is_data_dependent(self) -> bool:
        """Whether a value was needed that only real data could give."""
        return self in {FailureKind.DATA_DEPENDENT_VALUE, FailureKind.DATA_DEPENDENT_GUARD}

    @property
    def ends_the_process(self) -> bool:
        """Whether the attempt's process died or was killed: no exception, and the stack is not reliable."""
        return self in KIND_OF_STATUS.values()

    @property
    def depends_on_load(self) -> bool:
        """Whether a busy machine alone can cause it."""
        return self in {FailureKind.TIMEOUT, FailureKind.OUT_OF_MEMORY, FailureKind.COSTLY}

    @property
    def is_of_the_call(self) -> bool:
        """Whether torch refuses what the module is given, or its description: it belongs to whoever is given that."""
        return self in {FailureKind.UNREGISTERED_PYTREE, FailureKind.INVALID_DYNAMIC_SHAPES}

    @property
    def is_found_after_tracing(self) -> bool:
        """Whether torch finds it only when the whole forward has been traced."""
        return self in {FailureKind.DIMS_RELATED, FailureKind.DYNAMIC_DIM_SPECIALISED}


KINDS: tuple[FailureKind, ...] = tuple(FailureKind)
KIND_OF_STATUS = {
    OutcomeStatus.CRASHED: FailureKind.CRASH,
    OutcomeStatus.TIMED_OUT: FailureKind.TIMEOUT,
    OutcomeStatus.OUT_OF_MEMORY: FailureKind.OUT_OF_MEMORY,
}
KIND_OF_STAGE = {
    "translate": FailureKind.TRANSLATE,
    "load": FailureKind.LOAD,
    "run": FailureKind.RUN,
    "numbers": FailureKind.NUMBERS,
}
# The "exception" of an exported program whose numbers are not eager's: nothing was raised
NUMBERS_DIFFER = "exportdoctor.NumbersDiffer"
# Those of an attempt that passes, and takes more than the user allows with --slow or --heavy
SLOW_EXPORT = "exportdoctor.SlowExport"
HEAVY_EXPORT = "exportdoctor.HeavyExport"
# That of a program that refuses sizes which eager takes, by a guard that its export made
SIZES_REFUSED = "exportdoctor.SizesRefused"
KIND_OF_OUR_EXCEPTION = {
    NUMBERS_DIFFER: FailureKind.NUMBERS,
    SLOW_EXPORT: FailureKind.COSTLY,
    HEAVY_EXPORT: FailureKind.COSTLY,
    SIZES_REFUSED: FailureKind.DYNAMIC_DIM_SPECIALISED,
}


class Rule(NamedTuple):
    """Fits where one exception has a class in `types` (any, if empty) and a message that matches, and frames match.

    `frames` is searched in every frame from the innermost user frame on, `around` in all frames, `culprit` in the
    innermost user frame alone, all written `file:function: source`; `op` in the name of the last operator, `made_by` in
    the source of the line that made the value which torch refused. An empty pattern asks nothing. With `only_sizes` no
    unbacked symbol may have been created: each symbol is the size of an input. With `some_number` one
    must have been that the message names.
    """

    kind: FailureKind
    why: str
    seen: str
    message: str
    types: tuple[str, ...] = ()
    frames: str = ""
    around: str = ""
    culprit: str = ""
    op: str = ""
    made_by: str = ""
    only_sizes: bool = False
    some_number: bool = False


_DYNAMO = ("Unsupported", "TorchRuntimeError", "UncapturedHigherOrderOpError")
_SHAPES_DIFFER = (
    r"Attempting to broadcast a dimension of length|must match the size of tensor|cannot be multiplied|"
    r"must have same reduction dim|Sizes of tensors must match|is invalid for input of size|"
    r"attempting to expand a dimension|expected (?:input|weight|m1 and m2|mat1 and mat2|size for)|"
    r"Expected size for|to have \d+ channels|broadcast shape|split_sizes to sum exactly|Dimension out of range|"
    r"index \d+ (?:is )?out of (?:range|bounds)|expected (?:scalar type|.{0,30} to have the same dtype)"
)
_PLAIN_NUMBER = (
    r"unhashable type: non-nested Sym|string passed to Sym(?:Int|Float)|'Sym(?:Int|Float)' object cannot be interpreted"
    r"|ufunc does not support argument \d+ of type Sym|can't convert np\.ndarray of type numpy\.object_"
)
_PATH = r"L\['\w+'\](?:(?!\.size\()\S)*\.size\("
_INPUT_PAIR = rf"generated guard [^\n]*?({_PATH}\)\[\d+\])[^\n]*?(?!\1){_PATH}"

RULES = (
    # memory
    Rule(FailureKind.OUT_OF_MEMORY, "the allocator says so", "2.8-2.13",
         r"not enough memory: you tried to allocate|CUDA out of memory|can't allocate memory|CUDA error: out of memory|"
         r"CUBLAS_STATUS_ALLOC_FAILED"),
    Rule(FailureKind.OUT_OF_MEMORY, "raised for memory alone", "any", "", types=("MemoryError", "OutOfMemoryError")),
    # devices
    Rule(FailureKind.CRASH, "the process's CUDA context is lost with it", "2.9-2.15",
         r"CUDA error: (?:device-side assert triggered|an illegal memory access|misaligned address|"
         r"an illegal instruction|unspecified launch failure|hardware stack error)"),
    Rule(FailureKind.DEVICE_MISMATCH, "torch compares devices before each operation", "2.1-2.15",
         r"found at least two devices|found two different devices|^\s*Tensor device mismatch|"
         r"indices should be either on \S+ or on the same device"),
    # an entry of dynamic_shapes for what is no container
    Rule(FailureKind.INVALID_DYNAMIC_SHAPES, "a spec for what has no sizes", "2.5-2.15",
         r"Cannot associate shape .* to non-tensor type <class '(?:NoneType|int|float|complex|bool|str|type|function|"
         r"torch\.(?:dtype|device|layout|memory_format))'>"),
    # pytrees
    Rule(FailureKind.UNREGISTERED_PYTREE, "an input that pytree takes for a leaf", "2.5-2.13",
         r"Unsupported input type <class .*Export only supports pytree containers"),
    Rule(FailureKind.UNREGISTERED_PYTREE, "an output that pytree takes for a leaf", "2.1-2.13",
         r"Found <class .*> in output, which is not a known type"),
    Rule(FailureKind.UNREGISTERED_PYTREE, "dynamo's check of inputs and outputs", "2.1-2.13",
         r"It looks like one of the (?:inputs|outputs) with type .* is not supported or pytree-flattenable"),
    Rule(FailureKind.UNREGISTERED_PYTREE, "dynamo at the end of its graph", "2.9-2.13",
         r"Encountered unrecognized type .* at output"),
    Rule(FailureKind.UNREGISTERED_PYTREE, "a spec for an object that pytree takes for a leaf", "2.5-2.13",
         r"Cannot associate shape .* to non-tensor type"),
    Rule(FailureKind.UNREGISTERED_PYTREE, "an input that is no tensor, number or string, beside a dynamic size", "2.13",
         r"^Unfamiliar meta val: "),
    Rule(FailureKind.UNREGISTERED_PYTREE, "a registered class without names for its children", "2.3-2.13",
         r"Did not find a flatten_with_keys_fn for type"),
    Rule(FailureKind.UNREGISTERED_PYTREE, "the boundary of the TorchScript exporter", "1.13-2.13",
         r"Only tuples, lists and Variables are supported as JIT inputs/outputs"),
    # vmap
    Rule(FailureKind.VMAP, "functorch's own refusals begin so", "2.0-2.13",
         r"\bvmap: |You tried to vmap over|with functorch transforms \(vmap"),
    Rule(FailureKind.VMAP, "an autograd.Function under vmap has no rule for the tracer's mode", "2.8-2.13",
         r"Current active mode .*ProxyTorchDispatchMode.* not registered"),
    Rule(FailureKind.VMAP, "a size that vmap made lies outside the tracer's bookkeeping; so do others, of views", "2.9",
         r"is not tracked with proxy for .*_ModuleStackTracer", around=r"\bvmap|_vmap|functorch"),
    Rule(FailureKind.VMAP, "a node's value is a BatchedTensor, which the bare assertion does not expect", "2.6-2.8",
         r"^\s*$", types=("AssertionError",), frames=r"_free_unbacked_symbols_with_path|_replace_unbacked_bindings"),
    Rule(FailureKind.VMAP, "dynamo on functorch", "2.5-2.13", r"Unsupported functorch tracing attempt", types=_DYNAMO),
    Rule(FailureKind.VMAP, "a constant of the trace belongs to a transform, such as jacrev, that is over", "2.13",
         r"meta conversion to view functorch tensor"),
    Rule(FailureKind.VMAP, "a fake tensor that a transform wraps is none by its class", "2.13",
         r"^'Tensor' object has no attribute 'constant'", frames=r"_dispatch_impl"),
    # fake kernels
    Rule(FailureKind.MISSING_FAKE_KERNEL, "torch.library's own words", "2.4-2.13",
         r"There was no fake impl registered for|no fake impl or Meta kernel was found|leaf_function without fake_fn"),
    Rule(FailureKind.MISSING_FAKE_KERNEL, "no fake, meta or composite kernel", "2.1-2.13",
         r"attempted to run this operator with Meta tensors|from the 'Meta' backend|"
         r"Operator does not support running with fake tensors|no meta kernel"),
    Rule(FailureKind.MISSING_FAKE_KERNEL, "raised for fake tensors alone", "2.1-2.13", "",
         types=("UnsupportedOperatorException", "UnsupportedFakeTensorException", "MissingOpProfile")),
    Rule(FailureKind.MISSING_FAKE_KERNEL, "a kernel that takes sizes as numbers got symbols", "2.8-2.13",
         r"SymIntArrayRef expected to contain only concrete integers"),
    Rule(FailureKind.MISSING_FAKE_KERNEL, "a compiled extension reads the memory of a tensor that has none", "2.4-2.13",
         r"Cannot access data pointer of Tensor \(e\.g\. FakeTensor.*erroneously tracing into a custom kernel",
         frames=r"^(?!.*(?:data_ptr|storage|dlpack|deepcopy|numpy|site-packages/torch/|^torch/)).*\w\("),
    Rule(FailureKind.WRONG_FAKE_KERNEL, "fake and real results were compared", "2.6-2.13",
         r"Real tensor propagation found"),
    Rule(FailureKind.WRONG_FAKE_KERNEL, "raised for that alone", "2.6-2.13", "", types=("MetadataMismatchError",)),
    # higher-order operators
    Rule(FailureKind.INPUT_MUTATION, "a branch writes into its operand", "2.4-2.13",
         r"Encountered (?:input mutation|aliasing) during higher order op tracing"),
    Rule(FailureKind.ATTRIBUTE_MUTATION, "a branch assigns to a module", "2.4-2.13",
         r"nn\.Module mutation in HigherOrderOp"),
    Rule(FailureKind.UNSUPPORTED_PYTHON, "dynamo could not take in the body of a higher-order op", "2.1-2.13", "",
         types=("UncapturedHigherOrderOpError", "CondOpArgsMismatchError")),
    Rule(FailureKind.UNSUPPORTED_PYTHON, "a higher-order op's branches do not fit together", "2.5-2.13",
         r"call_function (?:cond|while_loop|scan|associative_scan|map)\(", types=("TorchRuntimeError",)),
    # data-dependent values
    Rule(FailureKind.DATA_DEPENDENT_VALUE, "int() or an index needs the number itself", "2.1-2.13",
         r"Could not extract specialized (?:integer|float) from data-dependent expression"),
    Rule(FailureKind.DATA_DEPENDENT_VALUE, "float() asks for a bare symbol, no comparison", "2.1-2.13",
         r"Could not guard on data-dependent expression (?:(?!Eq\(|Ne\(|[<>=&|~]|\(unhinted)[^\n])+ \(unhinted"),
    Rule(FailureKind.DATA_DEPENDENT_GUARD, "a comparison of an unbacked symbol", "2.1-2.13",
         r"Could not guard on data-dependent expression"),
    Rule(FailureKind.DATA_DEPENDENT_GUARD, "dynamo on `if tensor`", "2.1-2.13",
         r"^\s*Data-dependent (?:branching|assertion failed|jump)|Assertion failed on symbolic shapes|"
         r"^generic_jump TensorVariable"),
    Rule(FailureKind.DATA_DEPENDENT_VALUE, "dynamo on a number read out of a tensor", "2.5-2.13",
         r"^\s*(?:Data dependent operator|Dynamic shape operator|Unsupported Tensor\.item\(\)|"
         r"Dynamic slicing with Tensor|Tensor\.tolist\(\) with)|with data-dependent output shape"),
    Rule(FailureKind.DATA_DEPENDENT_VALUE, "a fake tensor has no values to give", "2.1-2.13", "",
         types=("DataDependentOutputException", "DynamicOutputShapeException", "PendingUnbackedSymbolNotFound")),
    Rule(FailureKind.DATA_DEPENDENT_VALUE, "numpy wants the values", "2.1-2.13",
         r"\.numpy\(\) is not supported for tensor subclasses"),
    Rule(FailureKind.DATA_DEPENDENT_VALUE, "text with the number of a tensor, which a fake one doesn't have", "2.13",
         r"string passed to \w*Tensor\.__format__"),
    Rule(FailureKind.DATA_DEPENDENT_VALUE, "a name that was made of a number has its symbol in that place", "2.13",
         r"^[^\n]*'[^'\n]*u\d+[^'\n]*'$", types=("KeyError", "AttributeError", "ValueError"), some_number=True),
    Rule(FailureKind.DYNAMIC_DIM_SPECIALISED, "Python wants a size as a plain number, as a key or in text", "2.6-2.13",
         _PLAIN_NUMBER, only_sizes=True),
    Rule(FailureKind.DATA_DEPENDENT_VALUE, "an index of a tensor wants a plain number", "2.13",
         r"^only integers, slices .*\(got SymInt\)", types=("IndexError",)),
    Rule(FailureKind.DATA_DEPENDENT_VALUE, "Python wants a plain number where the tracer has a symbol", "2.6-2.13",
         _PLAIN_NUMBER),
    # dynamic_shapes that do not describe the inputs
    Rule(FailureKind.INVALID_DYNAMIC_SHAPES, "torch compares the structures before it traces", "2.5-2.13",
         r"mismatch between the structure of `\w+` and `dynamic_shapes`|"
         r"`dynamic_shapes` is specified as a dict, its top-level keys|Shapes assigned to input do not match",
         types=("UserError", "ValueError", "AssertionError")),
    Rule(FailureKind.INVALID_DYNAMIC_SHAPES, "torch compares a registered class with its shapes in pytree's words",
         "2.9-2.15", r"^Node (?:type|arity|context|keys) mismatch; ", types=("ValueError",),
         frames=r"export/dynamic_shapes\.py:_tree_map_with_path"),
    Rule(FailureKind.INVALID_DYNAMIC_SHAPES, "an entry is none that torch takes", "2.5-2.13",
         r"Unexpected dimension (?:mapped to index|#)\s?\d+ in input tensor shape|"
         r"Unexpected input tensor shape .* specified at|Expected dynamic shape spec .* to have the same length|"
         r"Found different definitions .* for the same symbolic|"
         r"expected dynamic_shapes? to be|Unable to specify input integers as dynamic"),
    Rule(FailureKind.INVALID_DYNAMIC_SHAPES, "keywords in **kwargs are described twice or in no form that fits", "2.14",
         r"dynamic shapes? for variadic keyword argument", types=("UserError",)),
    Rule(FailureKind.INVALID_DYNAMIC_SHAPES, "the example's own size lies outside of the declared range", "2.1-2.13",
         r"^\s*\d+ not in range \[", types=("ConstraintViolationError",)),
    # constraints between dimensions
    Rule(FailureKind.DYNAMIC_DIM_SPECIALISED, "a declared dimension became one number", "2.1-2.13",
         r"specialized it to be a constant|was inferred to be a constant|0/1 specialized"),
    Rule(FailureKind.DIMS_RELATED, "two sizes must be equal or follow from one another", "2.1-2.13",
         r"must always be (?:equal|related)|is not equal to L\[|Expected input .* to be equal to|"
         r"of the form .* where .* is an integer"),
    Rule(FailureKind.DIMS_RELATED, "one guard speaks of two sizes", "2.3-2.13", _INPUT_PAIR),
    Rule(FailureKind.DIMS_RELATED, "torch fails to print a relation that it can't state", "2.8-2.13",
         r"Expected op to be '==', got|name 'L' is not defined|Attempted to negate|"
         r"'One' object has no attribute 'name'",
         frames=r"symbolic_shapes\.py|dynamic_shapes\.py|non_strict_utils\.py"),
    Rule(FailureKind.DYNAMIC_DIM_SPECIALISED, "the declared range is too wide for the code", "2.1-2.13",
         r"satisfy the generated guard|not in range \[|Static shape constraint of|"
         r"conflicts between user-specified ranges and inferred ranges"),
    Rule(FailureKind.DYNAMIC_DIM_SPECIALISED, "any other violation of a declared dimension", "2.1-2.13", "",
         types=("ConstraintViolationError",)),
    Rule(FailureKind.DYNAMIC_DIM_SPECIALISED, "torch fails to print the range that a guard leaves", "2.13",
         r"^Cannot create Dim with inconsistent min=-?\d+, max=", types=("AssertionError",),
         frames=r"symbolic_shapes\.py|dynamic_shapes\.py|non_strict_utils\.py"),
    # state and mutation
    Rule(FailureKind.ATTRIBUTE_MUTATION, "strict mode forbade every assignment", "2.0-2.9",
         r"Mutating module attribute \w+ during export"),
    Rule(FailureKind.ATTRIBUTE_MUTATION, "a tensor attribute that is no buffer was assigned", "2.4-2.9",
         r"tensor attributes? .* (?:was|were) assigned during export"),
    Rule(FailureKind.ATTRIBUTE_MUTATION, "a buffer was assigned something that is no tensor", "2.8-2.13",
         r"expected FakeTensor, got|^$", frames=r"_map_assigned_buffer_to_proxy"),
    Rule(FailureKind.ATTRIBUTE_MUTATION, "a buffer was assigned a tensor of another shape", "2.13",
         r"attempting to expand a dimension.*While executing %copy_"),
    Rule(FailureKind.ATTRIBUTE_MUTATION, "forward registered or removed parameters or buffers", "1.13-2.13",
         r"state_dict changed after running the tracer"),
    Rule(FailureKind.ATTRIBUTE_MUTATION, "dynamo can't replay the assignment", "2.8-2.13",
         r"^\s*(?:Failed to set tensor attribute|getattr\(\) on nn\.Module with pending mutation|"
         r"Class attribute mutation when)"),
    Rule(FailureKind.AUTOGRAD_STATE, "autograd made a tensor that no node made", "2.9-2.13",
         LEAKED_CONSTANT, culprit=r"autograd\.grad\(|\.backward\("),
    Rule(FailureKind.AUTOGRAD_STATE, "the line that made the constant computes gradients", "2.9-2.13",
         LEAKED_CONSTANT,
         made_by=r"\b(?:autograd\.)?grad\(|\.backward\(|\.grad\b|\bvjp\(|\bjacrev\("),
    Rule(FailureKind.INPUT_MUTATION, "a write into a tensor that went round the tracer", "2.9-2.13",
         LEAKED_CONSTANT, op=r"_\."),
    Rule(FailureKind.INPUT_MUTATION, "the line that made the constant gives a tensor other data", "2.13",
         LEAKED_CONSTANT, made_by=r"\.data\s*=[^=]"),
    Rule(FailureKind.AUTOGRAD_STATE, "a write into a leaf, or across grad modes", "2.0-2.13",
         r"leaf Variable that requires grad is being used in an in-place|"
         r"view was created in (?:no_grad|inference) mode|Inplace update to inference tensor"),
    Rule(FailureKind.AUTOGRAD_STATE, "the exporter guards the grad mode", "2.1-2.13",
         r"Encountered autograd state manager op"),
    Rule(FailureKind.AUTOGRAD_STATE, "only leaves can be copied; a graph that records gradients made this one",
         "1.13-2.13",
         r"Only Tensors created explicitly by the user .*support the deepcopy protocol"),
    Rule(FailureKind.AUTOGRAD_STATE, "gradients are being recorded where none are wanted", "1.13-2.13",
         r"Can't call numpy\(\) on Tensor that requires grad|Cannot insert a Tensor that requires grad as a constant|"
         r"does not require grad and does not have a grad_fn|SymInt graph input is not implemented yet|"
         r"wrap_with_set_grad_enabled"),
    Rule(FailureKind.AUTOGRAD_STATE, "dynamo does not trace what changes autograd's state", "2.1-2.13",
         r"^\s*(?:setattr\(\) on Tensor\.requires_grad|Unsupported Tensor\.(?:requires_grad_|backward)\(\)|"
         r"(?:using `?torch\.)?`?autograd\.grad\b|using `torch\.autograd\.grad`|_autograd_grad |backward\(\) with|"
         r"Tensor\.retain_grad|Unsupported autograd\.Function|Non-function or method in subclass of torch\.autograd|"
         r"autograd\.Function\.apply|returning intermediate with requires_grad|requires_grad_\(\) intermediate|"
         r"Compilation of intermediate hooks|Module-level backwards hooks)", types=_DYNAMO),
    Rule(FailureKind.AUTOGRAD_STATE, "activation checkpointing inside a strict export", "2.8-2.13",
         r"_checkpoint_context_fn"),
    Rule(FailureKind.INPUT_MUTATION, "autograd forbids writes into one of several views", "1.13-2.13",
         r"is a view and is being modified inplace"),
    Rule(FailureKind.INPUT_MUTATION, "functionalisation froze the storage", "2.4-2.13",
         r"cannot mutate tensors with frozen storage"),
    Rule(FailureKind.INPUT_MUTATION, "one storage is written under two names", "2.8-2.9",
         r"Encountered duplicated inputs that are mutated"),
    Rule(FailureKind.INPUT_MUTATION, "the same in newer words: the graph was wrapped to take the alias apart", "2.13",
         r"expected compiled_fn to be GraphModule", frames=r"aot_stage2_export"),
    Rule(FailureKind.INPUT_MUTATION, "several elements share one address", "1.13-2.13",
         r"more than one element of the written-to tensor refers to a single memory location"),
    Rule(FailureKind.INPUT_MUTATION, "dynamo on a write into a graph input", "2.1-2.13",
         r"inplace view on a graph input|Inplace op on input tensor|Failed to mutate tensor data attribute|"
         r"Unsupported Tensor\.(?:set_|resize_|resize_as_)\(\)"),
    Rule(FailureKind.INPUT_MUTATION, "raised for aliases and writes alone", "2.5-2.13", "",
         types=("UnsupportedAliasMutationException", "UnsupportedMutationAliasingException")),
    # everything else that dynamo refuses
    Rule(FailureKind.PYTHON_ERROR, "the user's own exception, seen by dynamo", "2.6-2.13",
         r"^\s*Observed exception", types=("Unsupported",)),
    Rule(FailureKind.UNSUPPORTED_PYTHON, "dynamo refuses the construct", "2.0-2.13", "", types=("Unsupported",)),
    Rule(FailureKind.UNSUPPORTED_PYTHON, "a hook or a compiled callable made dynamo start again", "2.0-2.13",
         r"Tried to emit a second graph during export"),
    Rule(FailureKind.UNSUPPORTED_PYTHON, "dynamo itself stumbled", "2.0-2.13", "",
         types=("InternalTorchDynamoError", "BackendCompilerFailed")),
)  # fmt: skip

# Only where an operator from outside torch was traced: eager passes, so a shape that does not fit was promised wrongly
LYING_KERNEL = Rule(
    FailureKind.WRONG_FAKE_KERNEL, "shapes fit in eager and not in the trace", "2.1-2.13", _SHAPES_DIFFER
)

# The TorchScript exporter traces and translates in one call
TRANSLATION = Rule(
    FailureKind.TRANSLATE, "a symbolic function is missing or refuses", "1.13-2.13",
    r"Exporting the operator|unrecognized namespace|Occurred when translating|Unsupported prim::|"
    r"ONNX export failed on an operator|is an unexpected tensor scalar type|z_\(\): incompatible function arguments|"
    r"Module onnx is not installed",
)  # fmt: skip
