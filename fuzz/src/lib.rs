//! What is fuzzed: every decoder, and whole volumes with the memory beside them. A panic, a hang
//! and memory in proportion to a number that was read are the only failures.
//!
//! One program serves all targets; `STETFS_FUZZ=NAME` chooses. `scripts/fuzz.sh` runs them for a
//! while each, and the tests here run each on a few hundred inputs, so that none rots.
#![forbid(unsafe_code)]

use std::sync::LazyLock;

use stetfs_check::{Checker, FnSource, Report};
use stetfs_crash::damage::{self, BARE_EXT4, Left};
use stetfs_crash::target::Target as Subject;
use stetfs_media::Image;
use stetfs_schemes::SCHEMES;

#[path = "../../crates/format/tests/decoders/mod.rs"]
mod decoders;

type Run = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Something that takes any bytes.
pub struct Target {
    /// Its name, by which `STETFS_FUZZ` chooses it.
    pub name: String,
    /// A run of it takes milliseconds, since a volume is mounted in it.
    pub is_costly: bool,
    run: Run,
}

impl Target {
    fn new(name: &str, is_costly: bool, run: impl Fn(&[u8]) + Send + Sync + 'static) -> Self {
        Self {
            name: name.to_owned(),
            is_costly,
            run: Box::new(run),
        }
    }

    /// Runs it on an input.
    pub fn run(&self, data: &[u8]) {
        (self.run)(data);
    }
}

/// All of them.
pub static TARGETS: LazyLock<Vec<Target>> = LazyLock::new(|| {
    let decoders = decoders::DECODERS
        .iter()
        .map(|(name, run)| Target::new(name, false, run));
    let volumes = [
        Target::new("image", true, image),
        Target::new("check", false, check),
    ];
    let logs = SCHEMES
        .iter()
        .filter(|scheme| scheme.about.name != "null")
        .flat_map(|scheme| {
            let about = scheme.about;
            let modes = about.modes.iter().map(|mode| Some(mode.name()));
            let modes: Vec<_> = modes
                .chain(about.modes.is_empty().then_some(None))
                .collect();
            modes.into_iter().map(move |mode| log(about.name, mode))
        });
    decoders.chain(volumes).chain(logs).collect()
});

/// The target that `STETFS_FUZZ` names.
///
/// # Panics
/// It names none.
pub fn chosen() -> &'static Target {
    let name = std::env::var("STETFS_FUZZ").unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.name == name);
    target.unwrap_or_else(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name.as_str()).collect();
        panic!("STETFS_FUZZ={name}: there are {}", names.join(", "))
    })
}

type Volume = (Image, Vec<u64>);

static VOLUMES: LazyLock<Vec<Volume>> = LazyLock::new(damage::volumes_with_targets);

/// The volume that an input damages, and the damage.
fn volume(which: u8, hits: &[u8]) -> Image {
    let (image, targets) = &VOLUMES[usize::from(which) % VOLUMES.len()];
    let mut image = image.clone();
    damage::apply(&mut image, targets, hits);
    image
}

/// Whole volumes: a mke2fs image with one of everything, damaged as the input says, mounted, walked
/// and written.
fn image(data: &[u8]) {
    if let Some((which, hits)) = data.split_first() {
        damage::survive(volume(*which, hits));
    }
}

/// The checker on whole volumes. What it says must not depend on what it checked before.
fn check(data: &[u8]) {
    let Some((which, hits)) = data.split_first() else {
        return;
    };
    let report_by = |checker: &mut Checker, image: &Image| -> Report {
        let read = |offset, out: &mut [u8]| {
            image.read(offset, out);
            Ok(())
        };
        checker.check(&FnSource::new(image.size(), read))
    };
    let mut checker = Checker::new();
    for volume in [!which, *which].map(|which| volume(which, hits)) {
        let report = report_by(&mut checker, &volume);
        assert_eq!(report, report_by(&mut Checker::new(), &volume));
        let _ = report.to_string();
    }
}

/// What a scheme left when the power went off, damaged where its recovery reads: its log, or the
/// memory beside the volume.
fn log(scheme: &'static str, mode: Option<&'static str>) -> Target {
    let left = LazyLock::new(move || {
        let subject = Subject::new(scheme, mode, BARE_EXT4).expect("a scheme of the registry");
        Left::of(&subject).expect("a volume to damage (needs mke2fs)")
    });
    let name = mode.map_or(scheme.to_owned(), |mode| format!("{scheme}-{mode}"));
    Target::new(&name, true, move |data| left.damaged(data).survive())
}
