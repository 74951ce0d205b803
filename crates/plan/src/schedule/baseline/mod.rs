//! What others do.
