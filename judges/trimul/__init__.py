"""The TriMul judge: is a kernel for the triangle multiplicative update correct, and how fast is it on a GPU."""
