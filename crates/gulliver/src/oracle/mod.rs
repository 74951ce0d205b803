//! The oracle for people: models, clusters and published measurements read from files, answers as tables and
//! pages. What is asked is answered in `gulliver_oracle`.

pub mod cluster_file;
pub mod csv;
pub mod jobs_page;
pub mod models;
pub mod page;
pub mod score;
pub mod truth;
