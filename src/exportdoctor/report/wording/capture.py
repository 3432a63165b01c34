"""Sentences about what a capture could not see, or had to arrange, and about what an export leaves out."""

from __future__ import annotations

from collections.abc import Sequence

from exportdoctor.report.wording.formatting import count, short_path

_MOST_NAMED = 3

NO_KERNEL_RUNS = (
    "There is no GPU here: the forward ran on the CPU, exports on fake CUDA tensors, and no kernel. Tensors on "
    "different devices are found; what needs values on a GPU is not: its kernels, its numbers, cures"
)
NO_OTHER_SIZES = "there are no inputs of other sizes"
NOT_COMPARABLE = "its calls at other sizes cannot be compared"
FAILS_AT_OTHER_SIZES = "the forward fails at other sizes"
PACKED_SEQUENCE = "torch takes no dynamic sizes for a PackedSequence"
"""Why a submodule is asked at fixed sizes although its part has dynamic ones."""

COMPUTES_GRADIENTS = "its forward computes gradients and fails under torch.no_grad(), so that eager runs record them"
ASKED_WITHOUT_OTHER_SIZES = "without inputs of other sizes, submodules are asked at fixed sizes"
TAKES_POSITIONS = (
    "the decode file takes position_ids: cure.next_positions(model, inputs) for the first new token, then one more each"
)
ONE_SIZE = "there are inputs of only one size, so other sizes are not verified"


def replaced_function(name: str, by: str, path: str) -> str:
    """That a function of torch which attempts call is another's now."""
    return f"{name} is not torch's: the target replaced it by {by} ({short_path(path)}), which all attempts call"


def other_sizes_unused(count: int) -> str:
    """That input sets of other sizes were given, and no dynamic shapes."""
    given = "1 input set has" if count == 1 else f"{count} input sets have"
    them = "it was" if count == 1 else "they were"
    return (
        f"{given} other sizes or plain values than the example, and {them} not used: without dynamic_shapes "
        "everything is exported at fixed sizes"
    )


def inputs_without_values(count: int) -> str:
    """That inputs were too large to be copied."""
    return f"{count} large captured {'input is' if count == 1 else 'inputs are'} kept by shape, without values"


def scripted_modules(count: int) -> str:
    """That ScriptModules tell of no call."""
    if count == 1:
        return "1 ScriptModule takes no hooks, so whether and how it is called is not known"
    return f"{count} ScriptModules take no hooks, so whether and how they are called is not known"


def incomparable_modules(fqns: Sequence[str]) -> str:
    """Which submodules were called otherwise at other sizes."""
    names = ", ".join(fqns[:_MOST_NAMED]) + (", ..." if len(fqns) > _MOST_NAMED else "")
    asked, its = ("1 submodule is", "its") if len(fqns) == 1 else (f"{len(fqns)} submodules are", "their")
    return f"{asked} asked at fixed sizes, as {its} calls at other sizes cannot be compared: {names}"


def failed_at_other_sizes(error: str) -> str:
    """That nothing is known of what is dynamic in submodules."""
    return f"the forward fails at other sizes ({error}), so the submodules' inputs are taken as static"


def calls_left_out(fqns: Sequence[str], *, kept: int) -> str:
    """Which submodules have more distinct calls than are asked where they are asked."""
    names = ", ".join(fqns[:_MOST_NAMED]) + (", ..." if len(fqns) > _MOST_NAMED else "")
    have = "1 submodule has" if len(fqns) == 1 else f"{len(fqns)} submodules have"
    return f"{have} more than {kept} distinct calls, of which no more than {kept} are asked: {names}"


def kept_by_programs(note: str) -> str:
    """The note on what cannot be compared, where a forward may have asked for it."""
    return f"{note}. Where forward computes with it, an exported program keeps the value that it had during the export"


def needs_values(error: str) -> str:
    """That fake weights were replaced."""
    return f"the forward needs real values ({error} with fake weights), so it runs with random weights"


def training_mode(layers: Sequence[str]) -> str:
    """That layers are not in eval mode, so that neither is the program."""
    names = ", ".join(layers[:_MOST_NAMED]) + (", ..." if len(layers) > _MOST_NAMED else "")
    are = "1 layer is" if len(layers) == 1 else f"{len(layers)} layers are"
    return (
        f"{are} in training mode, and so is the program, which drops values or normalises by the batch as in training: "
        f"{names}. For inference, call eval() on the model before it is exported"
    )


def registered_classes(classes: Sequence[str]) -> str:
    """That a part exports only with these classes registered, and how to do that elsewhere."""
    return (
        f"torch.export refuses {', '.join(classes)} until pytree knows it. exportdoctor registers it while it exports; "
        'elsewhere apply find("register-cache-pytree") around the export and around runs of the program'
    )


def not_registered_for_inputs(classes: Sequence[str]) -> str:
    """That a scan of the printed inputs registers none of these classes, as that of the part does."""
    return (
        f"the scan of the part registers {', '.join(classes)} with pytree; one with --inputs does not, and tells "
        "that as a finding, which register-cache-pytree cures"
    )


def one_tensor_twice(paths: Sequence[str]) -> str:
    """That inputs are one tensor in the example, so that the program confuses them where they are several."""
    return (
        f"{', '.join(paths[:-1])} and {paths[-1]} are one tensor in the example. torch.export takes them for one "
        "input: the program may be wrong, in silence, where they differ. Give each a tensor of its own"
    )


def inputs_left_out(names: tuple[str, ...], because: str) -> str:
    """The note on a part that was captured without some of the model's inputs; `because` is empty where none with
    them were tried."""
    without = f"captured without {', '.join(names)}"
    if not because:
        return f"{without}: the first inputs that could be made have none, and eager took these"
    return f"{without}, because eager refused what was made: {because}"


def inputs_not_made(names: tuple[str, ...]) -> str:
    """The note on a part that goes without inputs that were not made."""
    return f"captured without {', '.join(names)}, which a processor can give; where they matter, give --inputs"


def opset_of_dtype(opset: int) -> str:
    """Why a file has not the opset that torch chooses."""
    return f"opset {opset}: in lower ones an operator of the model does not take its dtype"


def captured_alone(why: str) -> str:
    """The note on a part whose inputs are not those of the whole."""
    return f"captured on inputs made for it alone, because the whole model does not call it: {why}"


def other_opset(asked: int, found: int, why: str) -> str:
    """That a file has another opset than was asked for."""
    return f"the file has opset {found}: neither torch.onnx nor onnx could convert it to {asked}: {why}"


def loaded_providers(package: str, loaded: Sequence[str]) -> str:
    """What the file ran on."""
    return f"ran in {package} with {', '.join(loaded)}"


def lacking_kernels(operators: Sequence[str]) -> str:
    """That a file was verified in another form, because this processor cannot run it."""
    return (
        f"ONNX Runtime has no kernels of 16 bits on this processor for {', '.join(operators)}: the file does not load "
        "here, and was verified with these computed in float32"
    )


def assertion(expression: str, file: str, line: int) -> str:
    """What a program asserts of a value, and the line at which the value is asked for."""
    return f"{expression} for the value at {short_path(file)}:{line}"


def sizes_not_tried(error: str) -> str:
    """That nothing is known of the sizes beyond those that were compared."""
    return f"the sizes at which the file is right were not derived: {error}"


def fixed_images(shape: tuple[int, ...]) -> str:
    """That a program with a plain image takes one number of images of one size; `shape` is (N, channels, H, W)."""
    images, _, height, width = shape
    return (
        f"It takes {count(images, 'image')} of {height} x {width} pixels alone: --static fixes the number and the size"
    )


WRONG_FOR_SEVERAL = "its outputs are not eager's for several pictures"


def one_picture(why: str) -> str:
    """That a file takes one row with one picture, since no file for several could be made."""
    return f"It takes one row with one picture alone. For several: {why}"


INPUTS_DRAWN_ON_GPU = (
    "attempts draw at random on the GPU what eager computes of its inputs, such as a cache, as they do its weights"
)


def captured_with_values(error: str) -> str:
    """That the forward ran on the GPU, because it needs the values that attempts draw there."""
    return f"its forward ran on the GPU, with random weights that are drawn there: without values it fails ({error})"


def captured_on_gpu(error: str) -> str:
    """That the forward ran on the GPU, because it fails on the CPU."""
    return f"its forward ran on the GPU, because on the CPU it fails ({error})"


def sliding_window(window: int) -> str:
    """Said of a pair of programs whose model has such layers: what they cut off is decided while they are traced."""
    return (
        f"in eager, layers with a sliding window of {window} keep the last {window - 1} keys and values; whether these "
        f"programs do is decided by the example's length, so that with texts on the other side of {window} their cache "
        "has another length than eager's"
    )
