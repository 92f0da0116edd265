"""Layers of networks, composed of MindSpore's operations or in C++."""
