//! When and where. Pure: no files, threads, clocks, prints or `unsafe`.
#![forbid(unsafe_code)]
