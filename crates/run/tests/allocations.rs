//! What a step allocates in the steady state does not grow with the number of nodes it runs.

use gulliver::local::{LocalDevice, session};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::Graph;
use gulliver_graph::graph::build::Builder;
use gulliver_graph::role::OutputRole;
use gulliver_run::data::Batch;
use gulliver_run::host::{HostData, HostTensor};
use gulliver_run::session::StepKey;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Nodes of several kinds, with and without scratch and in place, again and again.
fn graph(rounds: usize) -> Graph {
    let mut g = Builder::new(false);
    let mut x = g.data("x", DType::F32, &["batch", "batch"]).unwrap();
    for _ in 0..rounds {
        let turned = g.transpose(x, &[1, 0]).unwrap();
        let product = g.contract("m k, k n -> m n", turned, x).unwrap();
        let sum = g.add(product, x).unwrap();
        x = g.softmax(sum, 1).unwrap();
    }
    let result = g.sum_all(x).unwrap();
    g.output("result", OutputRole::Metric, result);
    g.finish()
}

/// In the third step; with a budget, kernels are timed in it.
fn allocations(rounds: usize, threads: usize, memory: Option<u64>) -> u64 {
    let options = LocalDevice { threads, memory, ..LocalDevice::default() };
    let mut session = session(graph(rounds), None, &options, 0).unwrap();
    let x = HostTensor::new(&[8, 8], HostData::F32(vec![0.5; 64])).unwrap();
    let batch = Batch { fields: vec![("x".into(), x)] };
    let mut step = |step| session.step(&batch, StepKey { seed: 0, step }, &|_, _| None).unwrap();
    step(0);
    step(1);
    let before = COUNT.load(Ordering::Relaxed);
    step(2);
    COUNT.load(Ordering::Relaxed) - before
}

// One test, as other threads would be counted too.
#[test]
fn nodes_allocate_nothing() {
    for (threads, memory) in [(1, None), (2, None), (1, Some(1 << 20))] {
        let (few, many) = (allocations(2, threads, memory), allocations(500, threads, memory));
        assert_eq!(few, many, "{threads} threads, {memory:?}");
        assert!(few < 40, "{few} allocations for a step");
    }
}
