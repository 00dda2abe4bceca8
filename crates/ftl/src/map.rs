//! The map in memory: where each logical page lies; and the reverse map: who owns each page.
//!
//! - A page has no owner or one. After a remap that kept the journal's copy it has several. It is
//!   *live* while it has any.
//! - The reverse map, not the spare area, says who owns a page. The two differ after a remap: the
//!   spare area still names the journal's address until the page is moved.

use hashbrown::HashMap;
use smallvec::SmallVec;
use stetfs_format::ftl::NO_PAGE;
use stetfs_format::num::PageNo;
use stetfs_format::width::{must_fit, u32_as_usize};

/// A flag in the reverse map: the page has further owners.
const SHARED: u32 = 1 << 31;

/// Owners of a page.
pub(crate) type Owners = SmallVec<[u32; 4]>;

#[derive(Default)]
pub(crate) struct Map {
    /// The page of each logical page, or `NO_PAGE`.
    places: Vec<u32>,
    /// The first owner of each page, flagged if there are more, or `NO_PAGE`.
    owners: Vec<u32>,
    /// Further owners.
    sharers: HashMap<u32, Owners>,
}

impl Map {
    pub(crate) fn new(logical_pages: u32, pages: u32) -> Self {
        Self {
            places: vec![NO_PAGE; u32_as_usize(logical_pages)],
            owners: vec![NO_PAGE; u32_as_usize(pages)],
            sharers: HashMap::new(),
        }
    }

    /// Where a logical page lies; `None`: nowhere.
    pub(crate) fn place(&self, logical: u32) -> Option<PageNo> {
        let page = self.places[u32_as_usize(logical)];
        (page != NO_PAGE).then_some(PageNo(page))
    }

    /// The page number where a logical page lies, or `NO_PAGE`.
    pub(crate) fn raw_place(&self, logical: u32) -> u32 {
        self.places[u32_as_usize(logical)]
    }

    /// Sets a place without updating the reverse map; [`build_owners`](Self::build_owners) makes
    /// that at the end.
    pub(crate) fn load_place(&mut self, logical: u32, page: u32) {
        self.places[u32_as_usize(logical)] = page;
    }

    /// Builds the reverse map.
    pub(crate) fn build_owners(&mut self) {
        for logical in 0..must_fit(self.places.len()) {
            if let Some(page) = self.place(logical) {
                self.add_owner(page, logical);
            }
        }
    }

    /// How many logical pages lie somewhere.
    pub(crate) fn mapped(&self) -> u32 {
        must_fit(self.places.iter().filter(|page| **page != NO_PAGE).count())
    }

    /// How many pages have more than one owner.
    pub(crate) fn shared(&self) -> u32 {
        must_fit(self.sharers.len())
    }

    pub(crate) fn is_live(&self, page: PageNo) -> bool {
        self.owners[page.index()] != NO_PAGE
    }

    /// Returns all owners of a page. The first is the one that a spare area names if the page is
    /// programmed again.
    pub(crate) fn owners(&self, page: PageNo) -> Owners {
        let first = self.owners[page.index()];
        let mut all = Owners::new();
        if first != NO_PAGE {
            all.push(first & !SHARED);
            if first & SHARED != 0 {
                all.extend_from_slice(&self.sharers[&page.0]);
            }
        }
        all
    }

    /// Makes `logical` an owner of `page`. Returns whether the page became live.
    fn add_owner(&mut self, page: PageNo, logical: u32) -> bool {
        let first = &mut self.owners[page.index()];
        if *first == NO_PAGE {
            *first = logical;
            return true;
        }
        *first |= SHARED;
        self.sharers.entry(page.0).or_default().push(logical);
        false
    }

    /// Removes `logical` as an owner of `page`. Returns whether the page is dead now.
    fn remove_owner(&mut self, page: PageNo, logical: u32) -> bool {
        let first = &mut self.owners[page.index()];
        if *first & SHARED == 0 {
            assert_eq!(*first, logical, "the owner of page {page}");
            *first = NO_PAGE;
            return true;
        }
        let rest = self.sharers.get_mut(&page.0).expect("it is shared");
        if *first & !SHARED == logical {
            *first = rest.remove(0) | SHARED;
        } else {
            let at = rest.iter().position(|owner| *owner == logical);
            rest.remove(at.expect("it is one of the owners"));
        }
        if rest.is_empty() {
            *first &= !SHARED;
            self.sharers.remove(&page.0);
        }
        false
    }

    /// Gives `logical` the place `page`, in addition to the old one, which [`leave`](Self::leave)
    /// takes away. Returns the old place, and whether the new page became live.
    pub(crate) fn enter(&mut self, logical: u32, page: u32) -> (u32, bool) {
        let old = std::mem::replace(&mut self.places[u32_as_usize(logical)], page);
        let is_new = page != NO_PAGE && self.add_owner(PageNo(page), logical);
        (old, is_new)
    }

    /// Takes the place `page` away from `logical`. Returns whether the page is dead now.
    pub(crate) fn leave(&mut self, logical: u32, page: u32) -> bool {
        page != NO_PAGE && self.remove_owner(PageNo(page), logical)
    }

    /// Makes the owners of a page owners of `to` instead, which has none yet. Returns them.
    pub(crate) fn move_page(&mut self, from: PageNo, to: PageNo) -> Owners {
        let owners = self.owners(from);
        for logical in &owners {
            self.places[u32_as_usize(*logical)] = to.0;
        }
        let entry = std::mem::replace(&mut self.owners[from.index()], NO_PAGE);
        self.owners[to.index()] = entry;
        if let Some(rest) = self.sharers.remove(&from.0) {
            self.sharers.insert(to.0, rest);
        }
        owners
    }
}
