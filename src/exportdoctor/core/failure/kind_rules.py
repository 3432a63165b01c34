"""The table by which a failure gets its kind: the first rule that fits decides, so the specific ones stand first.

Each rule names why it holds and the torch releases that it was seen in, in runs or in their source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from exportdoctor.core.failure.kinds import Kind


class Rule(NamedTuple):
    """Fits where one exception has a class in `types` (any, if empty) and a message that matches, and frames match.

    `frames` is searched in every frame from the innermost user frame on, `culprit` in that frame alone, both written
    `file:function: source`; `op` in the name of the last operator. An empty pattern asks nothing.
    """

    kind: Kind
    why: str
    seen: str
    message: str
    types: tuple[str, ...] = ()
    frames: str = ""
    culprit: str = ""
    op: str = ""


_DYNAMO = ("Unsupported", "TorchRuntimeError", "UncapturedHigherOrderOpError")
_SHAPES_DIFFER = (
    r"Attempting to broadcast a dimension of length|must match the size of tensor|cannot be multiplied|"
    r"must have same reduction dim|Sizes of tensors must match|is invalid for input of size|"
    r"attempting to expand a dimension|expected (?:input|weight|m1 and m2|mat1 and mat2|size for)|"
    r"Expected size for|to have \d+ channels|broadcast shape|split_sizes to sum exactly|Dimension out of range|"
    r"index \d+ (?:is )?out of (?:range|bounds)|expected (?:scalar type|.{0,30} to have the same dtype)"
)
_INPUT_PAIR = r"generated guard [^\n]*?(L\['\w+'\]\S*?\.size\(\)\[\d+\])[^\n]*?(?!\1)L\['\w+'\]\S*?\.size\("

MEMORY = (
    Rule("out_of_memory", "the allocator says so", "2.8-2.13",
         r"not enough memory: you tried to allocate|CUDA out of memory|can't allocate memory"),
    Rule("out_of_memory", "raised for memory alone", "any", "", types=("MemoryError", "OutOfMemoryError")),
)  # fmt: skip

PYTREE = (
    Rule("unregistered_pytree", "an input that pytree takes for a leaf", "2.5-2.13",
         r"Unsupported input type <class .*Export only supports pytree containers"),
    Rule("unregistered_pytree", "an output that pytree takes for a leaf", "2.1-2.13",
         r"Found <class .*> in output, which is not a known type"),
    Rule("unregistered_pytree", "dynamo's check of inputs and outputs", "2.1-2.13",
         r"It looks like one of the (?:inputs|outputs) with type .* is not supported or pytree-flattenable"),
    Rule("unregistered_pytree", "dynamo at the end of its graph", "2.9-2.13",
         r"Encountered unrecognized type .* at output"),
    Rule("unregistered_pytree", "a spec for an object that pytree takes for a leaf", "2.5-2.13",
         r"Cannot associate shape .* to non-tensor type"),
    Rule("unregistered_pytree", "the boundary of the legacy tracer", "1.13-2.13",
         r"Only tuples, lists and Variables are supported as JIT inputs/outputs"),
)  # fmt: skip

VMAP = (
    Rule("vmap", "functorch's own refusals begin so", "2.0-2.13",
         r"\bvmap: |You tried to vmap over|with functorch transforms \(vmap"),
    Rule("vmap", "an autograd.Function under vmap has no rule for the tracer's mode", "2.8-2.13",
         r"Current active mode .*ProxyTorchDispatchMode.* not registered"),
    Rule("vmap", "a size that vmap made lies outside the tracer's bookkeeping", "2.9",
         r"is not tracked with proxy for .*_ModuleStackTracer"),
    Rule("vmap", "a node's value is a BatchedTensor, which the bare assertion does not expect", "2.6-2.8",
         r"^\s*$", types=("AssertionError",), frames=r"_free_unbacked_symbols_with_path|_replace_unbacked_bindings"),
    Rule("vmap", "dynamo on functorch", "2.5-2.13", r"Unsupported functorch tracing attempt", types=_DYNAMO),
)  # fmt: skip

FAKE_KERNELS = (
    Rule("missing_fake_kernel", "torch.library's own words", "2.4-2.13",
         r"There was no fake impl registered for|no fake impl or Meta kernel was found|leaf_function without fake_fn"),
    Rule("missing_fake_kernel", "no fake, meta or composite kernel", "2.1-2.13",
         r"attempted to run this operator with Meta tensors|from the 'Meta' backend|"
         r"Operator does not support running with fake tensors|no meta kernel"),
    Rule("missing_fake_kernel", "raised for fake tensors alone", "2.1-2.13", "",
         types=("UnsupportedOperatorException", "UnsupportedFakeTensorException", "MissingOpProfile")),
    Rule("missing_fake_kernel", "a compiled extension reads the memory of a tensor that has none", "2.4-2.13",
         r"Cannot access data pointer of Tensor \(e\.g\. FakeTensor.*erroneously tracing into a custom kernel",
         frames=r"^(?!.*(?:data_ptr|storage|dlpack|deepcopy|numpy|site-packages/torch/|^torch/)).*\w\("),
    Rule("wrong_fake_kernel", "fake and real results were compared", "2.6-2.13",
         r"Real tensor propagation found"),
    Rule("wrong_fake_kernel", "raised for that alone", "2.6-2.13", "", types=("MetadataMismatchError",)),
)  # fmt: skip

HIGHER_ORDER = (
    Rule("input_mutation", "a branch writes into its operand", "2.4-2.13",
         r"Encountered (?:input mutation|aliasing) during higher order op tracing"),
    Rule("attribute_mutation", "a branch assigns to a module", "2.4-2.13", r"nn\.Module mutation in HigherOrderOp"),
    Rule("unsupported_python", "dynamo could not take in the body of a higher-order op", "2.1-2.13", "",
         types=("UncapturedHigherOrderOpError", "CondOpArgsMismatchError")),
    Rule("unsupported_python", "a higher-order op's branches do not fit together", "2.5-2.13",
         r"call_function (?:cond|while_loop|scan|associative_scan|map)\(", types=("TorchRuntimeError",)),
)  # fmt: skip

DATA_DEPENDENT = (
    Rule("data_dependent_value", "int() or an index needs the number itself", "2.1-2.13",
         r"Could not extract specialized (?:integer|float) from data-dependent expression"),
    Rule("data_dependent_value", "float() asks for a bare symbol, no comparison", "2.1-2.13",
         r"Could not guard on data-dependent expression (?:(?!Eq\(|Ne\(|[<>=&|~]|\(unhinted)[^\n])+ \(unhinted"),
    Rule("data_dependent_guard", "a comparison of an unbacked symbol", "2.1-2.13",
         r"Could not guard on data-dependent expression"),
    Rule("data_dependent_guard", "dynamo on `if tensor`", "2.1-2.13",
         r"^\s*Data-dependent (?:branching|assertion failed|jump)|Assertion failed on symbolic shapes|"
         r"^generic_jump TensorVariable"),
    Rule("data_dependent_value", "dynamo on a number read out of a tensor", "2.5-2.13",
         r"^\s*(?:Data dependent operator|Dynamic shape operator|Unsupported Tensor\.item\(\)|"
         r"Dynamic slicing with Tensor|Tensor\.tolist\(\) with)|with data-dependent output shape"),
    Rule("data_dependent_value", "a fake tensor has no values to give", "2.1-2.13", "",
         types=("DataDependentOutputException", "DynamicOutputShapeException", "PendingUnbackedSymbolNotFound")),
    Rule("data_dependent_value", "numpy wants the values", "2.1-2.13",
         r"\.numpy\(\) is not supported for tensor subclasses"),
    Rule("data_dependent_value", "Python wants a plain number where the tracer has a symbol", "2.6-2.13",
         r"unhashable type: non-nested Sym|string passed to Sym(?:Int|Float)|"
         r"'Sym(?:Int|Float)' object cannot be interpreted"),
)  # fmt: skip

CONSTRAINTS = (
    Rule("dynamic_dim_specialised", "a declared dimension became one number", "2.1-2.13",
         r"specialized it to be a constant|was inferred to be a constant|0/1 specialized"),
    Rule("dims_related", "two sizes must be equal or follow from one another", "2.1-2.13",
         r"must always be (?:equal|related)|is not equal to L\[|Expected input .* to be equal to|"
         r"of the form .* where .* is an integer"),
    Rule("dims_related", "one guard speaks of two sizes", "2.3-2.13", _INPUT_PAIR),
    Rule("dims_related", "torch fails to print a relation that it can't state", "2.8-2.13",
         r"Expected op to be '==', got|name 'L' is not defined|Attempted to negate|"
         r"'One' object has no attribute 'name'",
         frames=r"symbolic_shapes\.py|dynamic_shapes\.py|non_strict_utils\.py"),
    Rule("dynamic_dim_specialised", "the declared range is too wide for the code", "2.1-2.13",
         r"satisfy the generated guard|not in range \[|Static shape constraint of|"
         r"conflicts between user-specified ranges and inferred ranges"),
    Rule("dynamic_dim_specialised", "any other violation of a declared dimension", "2.1-2.13", "",
         types=("ConstraintViolationError",)),
)  # fmt: skip

STATE = (
    Rule("attribute_mutation", "strict mode forbade every assignment", "2.0-2.9",
         r"Mutating module attribute \w+ during export"),
    Rule("attribute_mutation", "a tensor attribute that is no buffer was assigned", "2.4-2.9",
         r"tensor attributes? .* (?:was|were) assigned during export"),
    Rule("attribute_mutation", "a buffer was assigned something that is no tensor", "2.8-2.13",
         r"expected FakeTensor, got|^$", frames=r"_map_assigned_buffer_to_proxy"),
    Rule("attribute_mutation", "a buffer was assigned a tensor of another shape", "2.13",
         r"attempting to expand a dimension.*While executing %copy_"),
    Rule("attribute_mutation", "forward registered or removed parameters or buffers", "1.13-2.13",
         r"state_dict changed after running the tracer"),
    Rule("attribute_mutation", "dynamo can't replay the assignment", "2.8-2.13",
         r"^\s*(?:Failed to set tensor attribute|getattr\(\) on nn\.Module with pending mutation|"
         r"Class attribute mutation when)"),
    Rule("input_mutation", "a write into a tensor that went round the tracer", "2.9-2.13",
         r"fake tensor in the exported program constant's list", op=r"_\."),
    Rule("autograd_state", "autograd made a tensor that no node made", "2.9-2.13",
         r"fake tensor in the exported program constant's list", culprit=r"autograd\.grad\(|\.backward\("),
    Rule("autograd_state", "a constant that no node writes into comes from autograd", "2.9-2.13",
         r"fake tensor in the exported program constant's list", op=r"\w(?<!_)\."),
    Rule("input_mutation", "a write through .data goes round the tracer", "2.9-2.13",
         r"fake tensor in the exported program constant's list"),
    Rule("autograd_state", "a write into a leaf, or across grad modes", "2.0-2.13",
         r"leaf Variable that requires grad is being used in an in-place|"
         r"view was created in (?:no_grad|inference) mode|Inplace update to inference tensor"),
    Rule("autograd_state", "the exporter guards the grad mode", "2.1-2.13",
         r"Encountered autograd state manager op"),
    Rule("autograd_state", "only leaves can be copied; a graph that records gradients made this one", "1.13-2.13",
         r"Only Tensors created explicitly by the user .*support the deepcopy protocol"),
    Rule("autograd_state", "gradients are being recorded where none are wanted", "1.13-2.13",
         r"Can't call numpy\(\) on Tensor that requires grad|Cannot insert a Tensor that requires grad as a constant|"
         r"does not require grad and does not have a grad_fn|SymInt graph input is not implemented yet|"
         r"wrap_with_set_grad_enabled"),
    Rule("autograd_state", "dynamo does not trace what changes autograd's state", "2.1-2.13",
         r"^\s*(?:setattr\(\) on Tensor\.requires_grad|Unsupported Tensor\.(?:requires_grad_|backward)\(\)|"
         r"(?:using `?torch\.)?`?autograd\.grad\b|using `torch\.autograd\.grad`|_autograd_grad |backward\(\) with|"
         r"Tensor\.retain_grad|Unsupported autograd\.Function|Non-function or method in subclass of torch\.autograd|"
         r"autograd\.Function\.apply|returning intermediate with requires_grad|requires_grad_\(\) intermediate|"
         r"Compilation of intermediate hooks|Module-level backwards hooks)", types=_DYNAMO),
    Rule("autograd_state", "activation checkpointing inside a strict export", "2.8-2.13", r"_checkpoint_context_fn"),
    Rule("input_mutation", "autograd forbids writes into one of several views", "1.13-2.13",
         r"is a view and is being modified inplace"),
    Rule("input_mutation", "functionalisation froze the storage", "2.4-2.13",
         r"cannot mutate tensors with frozen storage"),
    Rule("input_mutation", "one storage is written under two names", "2.8-2.9",
         r"Encountered duplicated inputs that are mutated"),
    Rule("input_mutation", "the same in newer words: the graph was wrapped to take the alias apart", "2.13",
         r"expected compiled_fn to be GraphModule", frames=r"aot_stage2_export"),
    Rule("input_mutation", "several elements share one address", "1.13-2.13",
         r"more than one element of the written-to tensor refers to a single memory location"),
    Rule("input_mutation", "dynamo on a write into a graph input", "2.1-2.13",
         r"inplace view on a graph input|Inplace op on input tensor|Failed to mutate tensor data attribute|"
         r"Unsupported Tensor\.(?:set_|resize_|resize_as_)\(\)"),
    Rule("input_mutation", "raised for aliases and writes alone", "2.5-2.13", "",
         types=("UnsupportedAliasMutationException", "UnsupportedMutationAliasingException")),
)  # fmt: skip

DYNAMO = (
    Rule("python_error", "the user's own exception, seen by dynamo", "2.6-2.13",
         r"^\s*Observed exception", types=("Unsupported",)),
    Rule("unsupported_python", "dynamo refuses the construct", "2.0-2.13", "", types=("Unsupported",)),
    Rule("unsupported_python", "a hook or a compiled callable made dynamo start again", "2.0-2.13",
         r"Tried to emit a second graph during export"),
    Rule("unsupported_python", "dynamo itself stumbled", "2.0-2.13", "",
         types=("InternalTorchDynamoError", "BackendCompilerFailed")),
)  # fmt: skip

RULES = (*PYTREE, *VMAP, *FAKE_KERNELS, *HIGHER_ORDER, *DATA_DEPENDENT, *CONSTRAINTS, *STATE, *DYNAMO)

# Only where an operator from outside torch was traced: eager passes, so a shape that does not fit was promised wrongly
LYING_KERNEL = Rule("wrong_fake_kernel", "shapes fit in eager and not in the trace", "2.1-2.13", _SHAPES_DIFFER)

# The legacy exporter traces and translates in one call
TRANSLATION = Rule(
    "translate", "a symbolic function is missing or refuses", "1.13-2.13",
    r"Exporting the operator|unrecognized namespace|Occurred when translating|Unsupported prim::|"
    r"ONNX export failed on an operator|is an unexpected tensor scalar type|z_\(\): incompatible function arguments|"
    r"Module onnx is not installed",
)  # fmt: skip
