//! Models that others have published measurements of, as workloads.

use crate::convnet::Convnet;
use crate::kernel::{Divide, Work};
use crate::transformer::Transformer;
use crate::workload::{Layer, Workload};

/// AlexNet for images of this extent.
pub fn alexnet(size: u32) -> Workload {
    let mut net = Convnet::new(3, &[size, size]);
    net.conv(96, [11, 4, 2], false).pool([3, 2, 0]);
    net.conv(256, [5, 1, 2], false).pool([3, 2, 0]);
    net.conv(384, [3, 1, 1], false).conv(384, [3, 1, 1], false).conv(256, [3, 1, 1], false).pool([3, 2, 0]);
    net.linear(4096).linear(4096).linear(1000);
    net.workload("alexnet")
}

/// VGG-16 for images of this extent.
pub fn vgg16(size: u32) -> Workload {
    let mut net = Convnet::new(3, &[size, size]);
    for (filters, convolutions) in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)] {
        for _ in 0..convolutions {
            net.conv(filters, [3, 1, 1], false);
        }
        net.pool([2, 2, 0]);
    }
    net.linear(4096).linear(4096).linear(1000);
    net.workload("vgg16")
}

/// ResNet-50 (blocks 3, 4, 6, 3) or ResNet-152 (3, 8, 36, 3) for images of this extent.
pub fn resnet(blocks: [u32; 4], size: u32) -> Workload {
    let mut net = Convnet::new(3, &[size, size]);
    net.conv(64, [7, 2, 3], true).pool([3, 2, 1]);
    for (stage, &count) in blocks.iter().enumerate() {
        let width = 64 << stage;
        for block in 0..count {
            let stride = if block == 0 && stage > 0 { 2 } else { 1 };
            let before = (net.shape().0, net.shape().1.to_vec());
            if block == 0 {
                net.conv(4 * width, [1, stride, 0], true).branch(before);
            }
            net.conv(width, [1, 1, 0], true).conv(width, [3, stride, 1], true);
            net.conv(4 * width, [1, 1, 0], true).add();
        }
    }
    net.average().linear(1000);
    net.workload(if blocks[1] == 4 { "resnet50" } else { "resnet" })
}

/// CosmoFlow for cubes of this extent with four channels.
pub fn cosmoflow(size: u32) -> Workload {
    let mut net = Convnet::new(4, &[size; 3]);
    let mut extent = size;
    let mut filters = 16;
    while extent > 4 {
        net.conv(filters, [3, 1, 1], false).pool([2, 2, 0]);
        extent /= 2;
        filters = (filters * 2).min(256);
    }
    net.linear(128).linear(64).linear(4);
    net.workload("cosmoflow")
}

/// BERT-large for sequences of this length, of which so many tokens are predicted.
pub fn bert_large(length: u32, predicted: u32) -> Workload {
    let bert = Transformer {
        predicted: predicted as f64 / length as f64,
        ..Transformer::gpt(1024, 24, 16, length, 30528)
    };
    bert.workload("bert-large")
}

/// Transformer-XL, base or large, with its memory of earlier tokens.
pub fn transformer_xl(large: bool) -> Workload {
    let (hidden, layers, heads, length) = if large { (1024, 18, 16, 384) } else { (512, 16, 8, 192) };
    let model = Transformer {
        memory: length as f64,
        // An adaptive output layer: most tokens need its first part alone.
        ..Transformer::gpt(hidden, layers, heads, length, 20000)
    };
    let mut workload = model.workload("transformer-xl");
    // Positions have a product and scores of their own, which are shifted, added, scaled, masked and dropped
    // by a kernel each.
    let (heads, s, width) = (model.heads, model.length, model.hidden / model.heads);
    let scores = heads * s * (s + model.memory);
    let positions = Work::batched(heads, s, s + model.memory, width);
    // Keys and values, and with them queries, are made of the memory too.
    let all = Work::matrix(s + model.memory, 3.0 * model.hidden, model.hidden, Divide::Columns);
    let block = &mut workload.layers[1];
    block.forward[0] = all;
    block.backward[..2].copy_from_slice(&all.gradients());
    block.forward.extend([positions, Work::memory(14.0 * scores, 9.0, Divide::Batch)]);
    block.backward.extend(positions.gradients());
    block.backward.push(Work::memory(20.0 * scores, 12.0, Divide::Batch));
    block.kept += 4.0 * scores;
    // Its table has a gradient for every word: set to zero, and that of the output, which has the same table, added.
    let table = if large { 79e6 } else { 137e6 };
    workload.layers[0].weights = table;
    workload.layers[0].backward.push(Work { weights: 4.0 * table, ..Work::memory(0.0, 2.0, Divide::Batch) });
    workload
}

/// The big transformer of machine translation: six layers that encode and six that decode.
pub fn transformer_big(length: u32) -> Workload {
    let mut workload = Transformer::gpt(1024, 6, 16, length, 33712).workload("transformer-big");
    let mut decoder = workload.layers[1].clone();
    decoder.name = "decoder".into();
    // Attention to what was encoded: four more products of the width, a third more work of all kinds.
    let (s, h) = (length as f64, 1024.0);
    for _ in 0..4 {
        let product = Work::matrix(s, h, h, Divide::Columns);
        decoder.forward.push(product);
        decoder.backward.extend(product.gradients());
    }
    decoder.weights += 4.0 * h * h;
    decoder.kept += 5.0 * s * h;
    workload.layers.insert(2, decoder);
    workload
}

/// GNMT: four LSTM layers that encode, four that decode with attention, for pairs of this length.
pub fn gnmt(length: u32) -> Workload {
    let (h, s, v) = (1024.0, length as f64, 32320.0);
    let recurrent = |name: &str, inputs: f64, count: u32| {
        let outside = Work::matrix(s, 4.0 * h, inputs, Divide::Columns);
        // A step after the other: products of one row a sample. A cell is a product, its bias, a split, five
        // functions, five products and sums, three kernels of dropout and a residual; the loop around it reads,
        // writes and counts.
        let step = Work {
            calls: 24.0 * s,
            weights: 4.0 * h * h * s,
            ..Work::matrix(s, 4.0 * h, h, Divide::Columns)
        };
        let gates = Work::memory(12.0 * s * h, 0.0, Divide::Batch);
        let mut backward = outside.gradients().to_vec();
        backward.extend(step.gradients());
        backward.push(Work::memory(20.0 * s * h, 0.0, Divide::Batch));
        Layer {
            count,
            weights: 4.0 * h * (inputs + h),
            input: s * inputs,
            output: s * h,
            kept: 7.0 * s * h,
            ..Layer::new(name, vec![outside, step, gates], backward)
        }
    };
    let head = Work::matrix(s, v, h, Divide::Columns);
    let softmax = Work::memory(6.0 * s * v, 5.0, Divide::Batch);
    let mut backward = head.gradients().to_vec();
    backward.push(softmax);
    // A decoder's step attends to all that was encoded: a query, its sum with every key, a function, scores, their
    // softmax, and what they weigh.
    let query = Work { calls: 12.0 * s, weights: h * h * s, ..Work::matrix(s, h, h, Divide::Columns) };
    let mut attended = query.gradients().to_vec();
    attended.push(Work::memory(10.0 * s * s * h, 0.0, Divide::Batch));
    let attention = Layer {
        weights: 2.0 * h * h,
        input: s * h,
        output: s * h,
        kept: 2.0 * s * s * h,
        ..Layer::new("attention", vec![query, Work::memory(5.0 * s * s * h, 0.0, Divide::Batch)], attended)
    };
    let mut layers = vec![recurrent("encoder", h, 4), recurrent("decoder", 2.0 * h, 4), attention];
    layers.push(Layer {
        weights: 3.0 * v * h,
        input: s * h,
        output: s,
        kept: 3.0 * s * v,
        ..Layer::new("head", vec![head, softmax], backward)
    });
    Workload { name: "gnmt".into(), layers, sample: 2.0 * s, tied: 0.0 }
}
