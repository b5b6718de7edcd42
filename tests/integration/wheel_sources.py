"""A DeepSpeed source tree whose cpu_lion compiles in a second, for everything but the operations themselves."""

from __future__ import annotations

import tarfile
from pathlib import Path

# One file uses what makes builds differ from one another: the path it is compiled under and symbols of its own.
MODULE = """
#include <Python.h>
#define NAMED(name) NAMED_AGAIN(name)
#define NAMED_AGAIN(name) PyInit_##name
extern const char *other();
namespace { int counter = 0; }
static PyObject *here(PyObject *, PyObject *)
{
    ++counter;
    return Py_BuildValue("(sss)", __FILE__, other(), SIMD);
}
static PyMethodDef methods[] = {{"here", here, METH_NOARGS, "where it was compiled"}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny", nullptr, -1, methods};
PyMODINIT_FUNC NAMED(TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
"""
SIMD = """
#if defined(__AVX512__)
#define SIMD "avx512"
#elif defined(__AVX256__)
#define SIMD "avx256"
#else
#define SIMD "scalar"
#endif
"""
OTHER = "const char *other() { return __FILE__; }\n"


def tiny_tree(sdist: Path, into: Path, *, module: str = SIMD + MODULE) -> Path:
    """Unpack the sdist and put tiny sources in the place of cpu_lion's; returns the tree."""
    with tarfile.open(sdist) as archive:
        archive.extractall(into, filter="data")
    (tree,) = into.iterdir()
    (tree / "csrc/lion/cpu_lion.cpp").write_text(module)
    (tree / "csrc/lion/cpu_lion_impl.cpp").write_text(OTHER)
    return tree
