//! One model of each make; the others of the table differ in size alone.

/// Names in the table of models.
pub const MAKES: [&str; 12] = [
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
