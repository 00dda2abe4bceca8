//! Inspecting a layer without using it: nothing is programmed or erased.

use std::sync::Arc;

use stetfs_format::ftl::PageKind;
use stetfs_format::num::PageNo;
use stetfs_format::width::usize_as_u64;
use stetfs_media::nand::Nand;
use stetfs_media::{Class, Tag};

use crate::core::{Core, FtlStats};
use crate::error::FtlError;
use crate::recovery::{MountReport, load};
use crate::wear::Wear;

/// A layer as it is on the part.
pub struct Inspection {
    core: Core,
    /// What a mount would find.
    pub report: MountReport,
}

/// The properties of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FtlInfo {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Logical pages: the capacity.
    pub logical_pages: u32,
    /// How many of these hold something.
    pub mapped_pages: u32,
    /// Pages that hold the content of several logical pages.
    pub shared_pages: u32,
    /// Counts of what it has done up to the last checkpoint.
    pub stats: FtlStats,
}

/// The damage in a layer's data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FtlCheck {
    /// Pages that were read.
    pub pages: u64,
    /// Logical pages that cannot be read.
    pub unreadable: Vec<u32>,
    /// Logical pages whose content was lost earlier, and whose page records the loss.
    pub lost: Vec<u32>,
    /// Logical pages whose page holds something else.
    pub foreign: Vec<u32>,
    /// How many logical pages lie in a page that was written for another one, as after a remap.
    pub remapped: u64,
    /// Pages that should be moved because they had nearly as many wrong bits as the code corrects.
    /// A mount or a read moves them.
    pub weak: u64,
}

impl Inspection {
    /// Reads what a mount would read.
    pub fn new(nand: Arc<dyn Nand>) -> Result<Self, FtlError> {
        let (core, report) = load(nand)?.into_view();
        Ok(Self { core, report })
    }

    /// Returns the layer's properties.
    pub fn info(&self) -> FtlInfo {
        FtlInfo {
            uuid: self.core.uuid,
            logical_pages: self.core.shape.logical_pages,
            mapped_pages: self.core.map.mapped(),
            shared_pages: self.core.map.shared(),
            stats: self.core.stats,
        }
    }

    /// Returns the distribution of the erases.
    pub fn wear(&self) -> Wear {
        Wear::of(&self.core.blocks, self.core.shape.least_good_blocks())
    }

    /// Reads every page that holds something.
    pub fn check(&mut self) -> Result<FtlCheck, FtlError> {
        let mut check = FtlCheck::default();
        let mut data = vec![0; self.core.geometry().page_len()];
        let tag = Tag::read(Class::Data);
        for page in (0..self.core.geometry().pages()).map(PageNo) {
            if !self.core.map.is_live(page) {
                continue;
            }
            check.pages += 1;
            let owners = self.core.map.owners(page);
            let found = self.core.flash.read(page, &mut data, tag)?;
            check.weak += u64::from(matches!(found, crate::flash::Found::Weak(_)));
            let into = match found.record() {
                None => &mut check.unreadable,
                Some(record) => match record.kind {
                    kind if kind.is_content() => {
                        let others = owners.iter().filter(|owner| **owner != record.index);
                        check.remapped += usize_as_u64(others.count());
                        continue;
                    }
                    PageKind::Lost => &mut check.lost,
                    _ => &mut check.foreign,
                },
            };
            into.extend(owners);
        }
        for list in [&mut check.unreadable, &mut check.lost, &mut check.foreign] {
            list.sort_unstable();
        }
        Ok(check)
    }
}

impl FtlCheck {
    /// Whether every logical page can be read.
    pub fn is_clean(&self) -> bool {
        self.unreadable.is_empty() && self.lost.is_empty() && self.foreign.is_empty()
    }
}
