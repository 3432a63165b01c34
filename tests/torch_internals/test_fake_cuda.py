"""A process whose forks are to use autograd has none of its threads. Only a torch that is built for CUDA starts any."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

PROGRAM = """
import os, sys, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from exportdoctor.torch_internals.fake_cuda import start_autograd_without_threads

def gradient(x):
    (found,) = torch.autograd.grad((x * x).sum(), x)
    return found

mode = FakeTensorMode(allow_non_fake_inputs=True)
fake = mode.from_tensor(torch.ones(3)).requires_grad_()
start_autograd_without_threads()
gradient(fake)
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
gradient(fake)
real = torch.ones(3, requires_grad=True)
os._exit(0 if gradient(real).tolist() == [2.0, 2.0, 2.0] else 1)
"""


LATE = """
import os, sys, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from exportdoctor.torch_internals.fake_cuda import start_autograd_without_threads

fake = FakeTensorMode(allow_non_fake_inputs=True).from_tensor(torch.ones(3)).requires_grad_()
torch.autograd.grad(fake.sum(), fake)
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
start_autograd_without_threads()
os._exit(0)
"""


WITHOUT_DRIVER = """
import torch
from exportdoctor.torch_internals.fake_cuda import keep_driver_out
keep_driver_out()
keep_driver_out()
state = torch.cuda.get_rng_state()
torch.cuda.set_rng_state(state)
print(torch.cuda.is_current_stream_capturing(), int(state.sum()), torch.cuda.is_initialized())
"""


@pytest.mark.skipif(not torch.version.cuda, reason="this torch is not built for CUDA, and asks no driver")
def test_the_state_of_cuda_is_told_without_its_driver() -> None:
    """With or without a GPU: where the driver is asked and there is none, torch raises."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_DRIVER], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "0", "False"], done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_where_the_threads_are_there_already_nothing_is_raised() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_a_fork_computes_gradients_after_its_parent_did() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
