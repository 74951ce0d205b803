//! One model of each family; the others of the table differ only in size.

/// Names in the table of models.
pub const FAMILIES: [&str; 12] = [
    "mlp",
    "cnn",
    "resnet18",
    "resnet50",
    "vgg11",
    "mobilenet_v2",
    "dcgan",
    "pointnet",
    "cosmoflow",
    "lstm",
    "gpt",
    "bert",
];
