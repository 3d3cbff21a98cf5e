//! Real etcds start from what the program restored.
