//! What plans of one graph are made for: limits of memory, speeds of kernels and links, and who watches.

use crate::document::error::PlanError;
use crate::document::links::Links;
use crate::document::residence::Persistent;
use crate::step::order::PartialTurn;
use crate::step::progress::{Activity, Observer, Progress};
use crate::time::cost::{Curves, Rates, TierLimits};
use gulliver_graph::dim::{Bindings, DimError};
use gulliver_graph::graph::{Graph, Node};
use std::ops::ControlFlow;

/// What a plan is made for.
#[derive(Clone, Copy)]
pub struct PlanOptions<'a> {
    /// Where persistent values are.
    pub persistent: &'a Persistent,
    /// Slices of the batch whose gradients are added in order.
    pub partials: u32,
    /// Hard limit of the device's arena, if there is one.
    pub memory: Option<u64>,
    /// Hard limits of the other tiers.
    pub beside: TierLimits,
    /// Whether values may be recomputed.
    pub recompute: bool,
    /// Whether partials take turns layer by layer, so that weights are fetched once for all of them.
    pub grouped: bool,
    /// The turns of all nodes, if a schedule has given them any.
    pub turns: Option<&'a [PartialTurn]>,
    /// Working memory of the kernel that will run a node, for the sizes of one partial. Nodes of one
    /// kind need the same.
    pub scratch: &'a dyn Fn(&Graph, &Node, &Bindings) -> Result<u64, DimError>,
    /// How fast kernels are, where nothing like them was measured.
    pub rates: Rates,
    /// How fast kernels like them were measured to be on this machine.
    pub curves: Option<&'a Curves>,
    /// How many times longer than `rates` say each kind of node was measured to take; kinds beyond the end
    /// were not measured.
    pub slower: &'a [f64],
    /// How fast links are.
    pub links: Links,
    /// The share of the time of moves that is thought not to be hidden behind kernels.
    pub unhidden: f64,
    /// Called with the progress of planning, which it may stop.
    pub observe: &'a Observer<'a>,
}

impl<'a> PlanOptions<'a> {
    /// No limits, the batch in one piece, kernels that need no working memory.
    pub fn new(persistent: &'a Persistent) -> PlanOptions<'a> {
        PlanOptions {
            persistent,
            partials: 1,
            memory: None,
            beside: TierLimits { host: None, disk: None },
            recompute: true,
            grouped: false,
            turns: None,
            scratch: &|_, _, _| Ok(0),
            rates: Rates::default(),
            curves: None,
            slower: &[],
            links: Links::default(),
            unhidden: UNHIDDEN,
            observe: &|_| ControlFlow::Continue(()),
        }
    }

    /// Tells the observer; an error if it says stop.
    pub(crate) fn told(&self, activity: Activity, done: usize, of: usize) -> Result<(), PlanError> {
        match (self.observe)(Progress { activity, done, of }).is_continue() {
            true => Ok(()),
            false => Err(PlanError::Interrupted),
        }
    }

    /// The same for an ordinary machine.
    pub(crate) fn at_ordinary_prices(&self) -> PlanOptions<'a> {
        let (rates, links) = (Rates::default(), Links::default());
        PlanOptions { rates, curves: None, slower: &[], links, unhidden: UNHIDDEN, ..*self }
    }
}

/// The share of the time of moves that is thought not to be hidden, where nothing is known.
const UNHIDDEN: f64 = 0.3;
