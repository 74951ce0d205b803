//! Talking to people: the library façade, job files, reports and the command line.
#![forbid(unsafe_code)]
