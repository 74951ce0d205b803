//! The oracle for people: models and clusters read from files, answers as tables and
//! pages. What is asked is answered in `gulliver_oracle`.

pub mod cluster_file;
pub mod jobs_page;
pub mod models;
pub mod page;
