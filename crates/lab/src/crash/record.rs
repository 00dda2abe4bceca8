//! One run of a workload on the simulated device, with the model beside it.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use stetfs::MountOptions;
use stetfs_journal::DataPromise;
use stetfs_media::sim::{SimOptions, Tape};
use stetfs_media::{BlockDev, Image, RamDev, SimDev};

use super::script::Script;
use crate::image::Variety;
use crate::world::World;
use crate::world::library::Library;
use crate::world::model::Model;

/// What is run: everything that decides the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The volume.
    pub variety: Variety,
    /// `journal`, `ordered`, `writeback` or `null`.
    pub mode: &'static str,
    /// The workload.
    pub script: Script,
}

impl Setting {
    /// Mount options: small caches, no commits by the clock.
    pub fn options(&self) -> MountOptions {
        let list = match self.mode {
            "null" => "scheme=null,noatime,commit=300,memory=8M".to_owned(),
            mode => format!("scheme=jbd2,data={mode},noatime,commit=300,memory=8M"),
        };
        let mut options = MountOptions::parse(&list).expect("good options");
        options.clock = stetfs::clock::Clock::manual(1_700_000_000);
        options
    }

    /// A fresh volume with the base directory.
    ///
    /// # Errors
    /// mke2fs, or the first mount.
    pub fn image(&self) -> Result<Image> {
        let dir = crate::host::scratch()?;
        let path = dir.path().join("image");
        self.variety
            .make(&path, 12, if self.variety.block == 1024 { 1 } else { 4 })?;
        let dev = Arc::new(RamDev::from_file(&path)?);
        let (mut library, _) = Library::mount(dev.clone(), self.options())?;
        library.unmount()?;
        dev.to_file(&path)?;
        Ok(Image::from_file(&path)?)
    }
}

/// A run.
pub struct Record {
    /// What was run.
    pub setting: Setting,
    /// Every change of the device.
    pub tape: Tape,
    /// The model after so many operations.
    pub states: Vec<Model>,
    /// How many changes the device had seen when an operation began and when it returned.
    pub marks: Vec<(u64, u64)>,
    /// What a crash may do to data.
    pub promise: DataPromise,
}

impl Record {
    /// Runs the workload. Answers must be the model's.
    ///
    /// # Errors
    /// The volume cannot be made or mounted, or an answer is wrong.
    pub fn make(setting: Setting) -> Result<Self> {
        Self::make_on(setting, |dev| dev)
    }

    /// The same on something in front of the simulated device.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn make_on(
        setting: Setting,
        front: impl FnOnce(Arc<SimDev>) -> Arc<dyn BlockDev>,
    ) -> Result<Self> {
        let dev = Arc::new(SimOptions::default().build(setting.image()?));
        let shown = front(dev.clone());
        let (mut library, _) = Library::mount(shown, setting.options()).context("mounting")?;
        let promise = library.fs().data_promise();
        let mut model = Model::new(setting.variety.rules());
        let mut states = vec![model.clone()];
        let mut marks = Vec::new();
        for (i, op) in setting
            .script
            .ops(setting.variety.profile())
            .iter()
            .enumerate()
        {
            let before = dev.changes();
            let (expected, found) = (model.apply(op), library.apply(op));
            if expected != found {
                bail!("step {i} {op:?}: {found:?}, expected {expected:?}");
            }
            marks.push((before, dev.changes()));
            states.push(model.clone());
        }
        library.unmount().context("unmounting")?;
        let tape = dev.tape();
        Ok(Self {
            setting,
            tape,
            states,
            marks,
            promise,
        })
    }

    /// The states that a cut after `position` changes may leave: from the newest that was vouched for before it to
    /// that of the last operation that had begun.
    pub fn allowed(&self, position: usize) -> std::ops::RangeInclusive<usize> {
        let position = position as u64;
        let begun = self
            .marks
            .iter()
            .filter(|(before, _)| *before <= position)
            .count();
        let returned = self
            .marks
            .iter()
            .filter(|(_, after)| *after <= position)
            .count();
        self.states[returned].vouched()..=begun
    }

    /// The device again with this content, recording.
    pub fn device(&self, image: Image) -> SimDev {
        SimOptions::default().build(image)
    }
}
