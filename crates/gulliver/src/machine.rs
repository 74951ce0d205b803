//! The profile of a machine as a file: its path, its text, and whether it is of this machine.

use crate::error::Error;
use crate::files::read_text;
use crate::files::{check_file, write_file};
use gulliver_plan::document::links::Links;
use gulliver_plan::time::cost::{CollectivePrice, CurvePoint, Curves, MachineProfile, Rates};
use gulliver_run::team::cores;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Upper limit of the size of a file.
const MOST_BYTES: u64 = 64 << 20;

/// The numbers of a point, for a comment in the file.
const POINT: &str =
    "flops, bytes, first operand, second operand, first result, taps, row, columns, seconds, spread";

/// The profile of this machine, if there is one.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownMachine {
    /// The measured speeds.
    pub profile: Option<MachineProfile>,
    /// One line: the file they come from, or why there is none.
    pub about: String,
}

/// The name of the processor, as the system gives it.
pub fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, name)| name.trim().to_string())
}

/// The usual path: `gulliver/profile.toml` in the user's directory of settings.
pub fn default_path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let settings = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(settings.join("gulliver").join("profile.toml"))
}

/// The profile in a named file, which must be valid; without a name, that at the usual path if it is valid and of this
/// machine.
pub fn known(named: Option<&Path>) -> Result<KnownMachine, Error> {
    if let Some(path) = named {
        let about = format!("times by {}", path.display());
        return Ok(KnownMachine { profile: Some(read(path)?), about });
    }
    let without = |why: String| KnownMachine { profile: None, about: format!("times are rough: {why}") };
    let missing = || without("no profile; `gulliver profile` makes one in a minute".into());
    let Some(path) = default_path().filter(|path| path.exists()) else { return Ok(missing()) };
    Ok(match read(&path) {
        Ok(profile) if profile.cores == cores() && profile.processor == processor() => {
            KnownMachine { profile: Some(profile), about: format!("times by {}", path.display()) }
        }
        Ok(_) => without(format!("{} is of another machine; run `gulliver profile`", path.display())),
        Err(error) => without(format!("{error}; run `gulliver profile`")),
    })
}

/// Reads a profile.
pub fn read(path: &Path) -> Result<MachineProfile, Error> {
    let text = read_text(path, "a profile", MOST_BYTES)?;
    parse(&text).map_err(|problem| {
        Error::Invalid(format!("{}: {problem}; `gulliver profile` makes a new one", path.display()))
    })
}

/// Makes the directory of a profile if it is missing, and checks that the file can be written, before a minute is spent
/// on measuring.
pub fn make_ready(path: &Path) -> Result<(), Error> {
    let file = |source: io::Error| Error::File { path: path.to_path_buf(), source };
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        fs::create_dir_all(dir).map_err(file)?;
    }
    check_file(path)
}

/// Writes a profile; a directory that is missing is made.
pub fn write(path: &Path, profile: &MachineProfile) -> Result<(), Error> {
    make_ready(path)?;
    write_file(path, |out| out.write_all(render(profile).as_bytes()))
}

fn parse(text: &str) -> Result<MachineProfile, String> {
    let profile: MachineProfile = toml::from_str(text).map_err(|e| {
        let line = e.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        format!("line {line}: {}", e.message())
    })?;
    let positive = |what: &str, numbers: &[f64]| match numbers.iter().find(|x| !(x.is_finite() && **x > 0.0))
    {
        Some(x) => Err(format!("{what} is {x}, expected a number above 0")),
        None => Ok(()),
    };
    let Links { to_device, to_host, disk_read, disk_write, from_peers } = profile.links;
    positive("a rate of `links`", &[to_device, to_host, disk_read, disk_write, from_peers])?;
    for scaling in &profile.scaling {
        positive("a rate of `scaling`", &[scaling.flops, scaling.bytes])?;
    }
    for curves in &profile.curves {
        let Rates { flops, bytes, call } = curves.rates;
        positive(
            "a number of `curves`",
            &[flops, bytes, call, curves.threads as f64, curves.devices as f64],
        )?;
        let CollectivePrice { call, byte, beside } =
            curves.collective.unwrap_or(CollectivePrice { call: 0.0, byte: 0.0, beside: 0.0 });
        let Curves { uneven, fades, resumes, around, .. } = curves;
        let waits = [call, byte, beside, *uneven, *fades, *resumes, around[0], around[1]];
        if !waits.iter().all(|x| x.is_finite() && *x >= 0.0) {
            return Err("`collective`, `uneven`, `fades`, `resumes` or `around` has a number below 0".into());
        }
        for (family, points) in &curves.families {
            for point in points {
                let sizes = [point.load.flops, point.load.bytes].into_iter().chain(point.load.extents);
                let fine = sizes.chain([point.spread, curves.between]).all(|x| x.is_finite() && x >= 0.0);
                if !fine {
                    return Err(format!("a point of `{family}` has a number below 0"));
                }
                positive(&format!("the time of a point of `{family}`"), &[point.seconds])?;
            }
        }
    }
    Ok(profile)
}

/// The text of the file of a profile.
pub fn render(profile: &MachineProfile) -> String {
    let MachineProfile { cores, processor, links, scaling, curves } = profile;
    let mut text =
        String::from("# How fast a machine is. Made by `gulliver profile`; seconds, bytes, operations.\n");
    let mut line = |what: String| {
        text += &what;
        text.push('\n');
    };
    line(format!("cores = {cores}"));
    line(format!("processor = {}", toml::Value::String(processor.clone())));
    let Links { to_device, to_host, disk_read, disk_write, from_peers } = links;
    line(format!(
        "\n[links]\nto_device = {to_device:e}\nto_host = {to_host:e}\ndisk_read = {disk_read:e}\ndisk_write = {disk_write:e}\nfrom_peers = {from_peers:e}"
    ));
    for s in scaling {
        line(format!(
            "\n[[scaling]]\nthreads = {}\nflops = {:e}\nbytes = {:e}\nspread = {:.3}",
            s.threads, s.flops, s.bytes, s.spread
        ));
    }
    for Curves {
        threads,
        devices,
        between,
        collective,
        uneven,
        fades,
        resumes,
        around,
        rates,
        families,
        ..
    } in curves
    {
        let Rates { flops, bytes, call } = rates;
        line(format!(
            "\n[[curves]]\nthreads = {threads}\ndevices = {devices}\nbetween = {between:e}\n\
             rates = {{ flops = {flops:e}, bytes = {bytes:e}, call = {call:e} }}"
        ));
        if let Some(CollectivePrice { call, byte, beside }) = collective {
            line(format!(
                "collective = {{ call = {call:e}, byte = {byte:e}, beside = {beside:e} }}\nuneven = {uneven:.4}\n\
                 fades = {fades:.4}\nresumes = {resumes:e}\naround = [{:e}, {:e}]",
                around[0], around[1]
            ));
        }
        line(format!("\n# {POINT}\n[curves.families]"));
        for (family, points) in families {
            line(format!("{} = [\n{}]", toml::Value::String(family.clone()), rows(points)));
        }
    }
    text
}

fn rows(points: &[CurvePoint]) -> String {
    let mut text = String::new();
    for point in points {
        let numbers: [f64; 10] = (*point).into();
        let (sizes, [seconds, spread]) = numbers.split_at(8) else { continue };
        let sizes: Vec<String> = sizes.iter().map(|size| format!("{size:.1}")).collect();
        let _ = writeln!(text, "  [{}, {seconds:.4e}, {spread:.3}],", sizes.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;
    use gulliver_graph::work::Load;
    use gulliver_plan::time::cost::Scaling;

    fn small() -> MachineProfile {
        let point = |flops: f64| CurvePoint {
            load: Load { flops, bytes: 4.0, extents: [1.0, 2.0, 3.0, 9.0, 5.0, 4.0] },
            seconds: 0.25,
            spread: 0.125,
        };
        let families = [("contract rr".to_string(), vec![point(8.0), point(16.0)])].into_iter().collect();
        let rates = Rates { flops: 2e9, bytes: 3e9, call: 1e-6 };
        MachineProfile {
            cores: 2,
            processor: "a \"fast\" one".into(),
            links: Links { to_device: 1e9, to_host: 2e9, disk_read: 3e9, disk_write: 4e9, from_peers: 5e9 },
            scaling: vec![Scaling { threads: 1, flops: 5e9, bytes: 6e9, spread: 0.5 }],
            curves: vec![Curves {
                between: 1e-7,
                collective: Some(CollectivePrice { call: 2e-5, byte: 1e-9, beside: 4e-5 }),
                uneven: 0.0625,
                fades: 0.125,
                resumes: 1e-4,
                around: [3e-4, 2e-10],
                ..Curves::of([1, 2], rates, families)
            }],
        }
    }

    #[test]
    fn a_profile_is_read_as_it_was_written() {
        let dir = TestDir::new("profile-file");
        let path = dir.join("new").join("profile.toml");
        write(&path, &small()).unwrap();
        assert_eq!(read(&path).unwrap(), small());
        let named = known(Some(&path)).unwrap();
        assert_eq!(named.profile, Some(small()));
        assert_eq!(named.about, format!("times by {}", path.display()));
    }

    #[test]
    fn wrong_profiles_are_refused_in_one_line() {
        let good = render(&small());
        for (from, to, said) in [
            ("cores = 2", "cores = two", "line 2"),
            ("2.5000e-1", "0.0", "the time of a point of `contract rr` is 0"),
            ("2.5000e-1", "nan", "the time of a point of `contract rr` is NaN"),
            ("[8.0,", "[-8.0,", "below 0"),
            ("disk_write = 4e9", "disk_write = 0.0", "a rate of `links` is 0"),
            ("[8.0, ", "[", "line"),
            (
                "byte = 1e-9",
                "byte = -1e-9",
                "`collective`, `uneven`, `fades`, `resumes` or `around` has a number below 0",
            ),
            ("around = [3e-4", "around = [-3e-4", "has a number below 0"),
            ("devices = 2", "devices = 0", "a number of `curves` is 0"),
        ] {
            assert!(good.contains(from), "{from}");
            let problem = parse(&good.replace(from, to)).unwrap_err();
            assert!(problem.contains(said) && !problem.contains('\n'), "{from} -> {to}: {problem}");
        }
    }
}
