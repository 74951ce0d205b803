//! What software adds to the closed forms, by hand: gradients that are added up, messages in parts, what is gathered
//! again, and exchanges that nothing can hide.

use gulliver_graph::dim::Bindings;
use gulliver_graph::model::model;
use gulliver_oracle::cluster::Cluster;
use gulliver_oracle::collective::{all_gather, all_reduce};
use gulliver_oracle::estimate::Estimate;
use gulliver_oracle::from_graph::{KernelStyle, from_model};
use gulliver_oracle::oracle::estimate;
use gulliver_oracle::setting::{Setting, Software};
use gulliver_oracle::strategy::{ClusterStrategy, Cut, Recompute};
use gulliver_oracle::workload::Workload;

fn gpt() -> Workload {
    let built = model("gpt3-1.3b", &[]).unwrap();
    let sizes = Bindings::new().with("length", 2048);
    from_model("gpt", built.as_ref(), &sizes, KernelStyle::Framework).unwrap()
}

fn ask(strategy: &ClusterStrategy, batch: u32, software: &Software) -> Estimate {
    let cluster = Cluster::named("dgx-a100").unwrap();
    let setting = Setting { software: software.clone(), ..Setting::new(batch).unwrap() };
    estimate(&gpt(), &cluster, strategy, &setting).unwrap()
}

fn ideal() -> Software {
    Software::named("ideal").unwrap()
}

fn close(a: f64, b: f64) {
    assert!((a / b - 1.0).abs() < 1e-9, "{a} and {b}");
}

#[test]
fn gradients_of_several_micro_batches_are_added_up() {
    let adds = Software { accumulate: 3.0, ..ideal() };
    let backward =
        |batch, software: &Software| ask(&ClusterStrategy::serial(4), batch, software).phases.backward;
    close(backward(4, &adds), backward(4, &ideal()));
    let device = Cluster::named("dgx-a100").unwrap().device;
    let each = gpt().weights() * 3.0 * 2.0 / (device.bandwidth * device.efficiency.memory);
    close(backward(8, &adds) - backward(8, &ideal()), 2.0 * each);
}

#[test]
fn a_part_of_a_message_from_each_is_quicker_between_nodes() {
    let strategy = ClusterStrategy { ways: 8, cut: Cut::Tensor, stages: 2, ..ClusterStrategy::serial(1) };
    let whole = ask(&strategy, 16, &ideal());
    let parts = ask(&strategy, 16, &Software { scattered: true, ..ideal() });
    assert!(parts.phases.messages < 0.5 * whole.phases.messages);
    close(parts.traffic.between, whole.traffic.between / 8.0);
    // Within a node a message is quicker than what would gather it.
    let near = ClusterStrategy { ways: 2, stages: 4, ..strategy };
    let scattered = ask(&near, 16, &Software { scattered: true, ..ideal() }).phases.messages;
    assert!(scattered <= ask(&near, 16, &ideal()).phases.messages);
}

#[test]
fn a_cut_of_the_sequence_is_gathered_once_more() {
    let strategy =
        |cut| ClusterStrategy { ways: 8, cut, recompute: Recompute::Nothing, ..ClusterStrategy::serial(4) };
    let of = |cut| ask(&strategy(cut), 4, &ideal()).phases.collectives;
    let cluster = Cluster::named("dgx-a100").unwrap();
    let each = all_gather(&cluster, cluster.group(8, 1, 8), 4.0 * 2048.0 * 2048.0 * 2.0);
    // Twice in each of 24 layers, and once for the embedding.
    close(of(Cut::Sequence) - of(Cut::Tensor), 49.0 * each);
}

#[test]
fn gradients_of_the_first_layer_are_not_hidden() {
    let hides = Software { overlap: 0.9, ..ideal() };
    let strategy = ClusterStrategy { data: 8, ..ClusterStrategy::serial(16) };
    let cluster = Cluster::named("dgx-a100").unwrap();
    let workload = gpt();
    let all = all_reduce(&cluster, cluster.group(8, 1, 8), workload.weights() * 2.0);
    let shown = all * workload.layers[0].weights / workload.weights();
    let exchange = ask(&strategy, 128, &hides).phases.exchange;
    // What is hidden takes a part of the device from the kernels it runs beside.
    assert!(exchange > shown && exchange < 0.5 * all, "{exchange} of {all}, {shown} shown");
}
