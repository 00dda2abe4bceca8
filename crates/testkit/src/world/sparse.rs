//! The content of a file in the model: written pages, and zeros elsewhere. Cloning copies no page.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes in a page; also the unit in which contents are compared.
pub const PAGE: u64 = 4096;

type Page = [u8; PAGE as usize];

/// A file's bytes.
#[derive(Clone, Debug, Default)]
pub struct Sparse {
    size: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Sparse {
    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the pages that were written and may differ from zero, in order.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().map(|(at, page)| (*at, page.as_slice()))
    }

    /// Returns the page at `index` if it was ever written.
    pub fn page(&self, index: u64) -> Option<&[u8]> {
        self.pages.get(&index).map(|page| page.as_slice())
    }

    /// Returns up to `len` bytes from `offset` on; fewer at the end.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let len = (len as u64).min(self.size.saturating_sub(offset)) as usize;
        let mut out = vec![0; len];
        each_page(offset, len as u64, |page, start, done, n| {
            if let Some(page) = self.pages.get(&page) {
                out[done..done + n].copy_from_slice(&page[start..start + n]);
            }
        });
        out
    }

    /// Writes `bytes` at `offset`.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        each_page(offset, bytes.len() as u64, |page, start, done, n| {
            let page = self
                .pages
                .entry(page)
                .or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(page)[start..start + n].copy_from_slice(&bytes[done..done + n]);
        });
        if !bytes.is_empty() {
            self.size = self.size.max(offset + bytes.len() as u64);
        }
    }

    /// Makes a range read as zeros; the length stays.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let touched: Vec<u64> = self
            .pages
            .range(offset / PAGE..end.div_ceil(PAGE))
            .map(|(at, _)| *at)
            .collect();
        for at in touched {
            let start = offset.saturating_sub(at * PAGE).min(PAGE) as usize;
            let stop = (end - at * PAGE).min(PAGE) as usize;
            if start == 0 && stop == PAGE as usize {
                self.pages.remove(&at);
            } else if let Some(page) = self.pages.get_mut(&at) {
                Arc::make_mut(page)[start..stop].fill(0);
            }
        }
    }

    /// Sets the length; cut-off bytes read as zeros if the file grows again.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size - size);
        }
        self.size = size;
    }
}

/// Calls `f(page, start in it, bytes done before, length)` for each page that a range touches.
fn each_page(offset: u64, len: u64, mut f: impl FnMut(u64, usize, usize, usize)) {
    let mut done = 0;
    while done < len {
        let at = offset + done;
        let n = (PAGE - at % PAGE).min(len - done);
        f(at / PAGE, (at % PAGE) as usize, done as usize, n as usize);
        done += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_a_vector() {
        let mut sparse = Sparse::default();
        let mut plain = vec![0u8; 0];
        let mut rng = crate::rng::Rng::new(3);
        for _ in 0..2000 {
            let at = rng.below(20_000) as usize;
            let len = rng.below(9_000) as usize;
            match rng.below(3) {
                0 => {
                    let mut bytes = vec![0; len];
                    rng.fill(&mut bytes);
                    if plain.len() < at + len && len > 0 {
                        plain.resize(at + len, 0);
                    }
                    if len > 0 {
                        plain[at..at + len].copy_from_slice(&bytes);
                    }
                    sparse.write(at as u64, &bytes);
                }
                1 => {
                    let end = (at + len).min(plain.len());
                    if at < end {
                        plain[at..end].fill(0);
                    }
                    sparse.zero(at as u64, len as u64);
                }
                _ => {
                    plain.resize(at, 0);
                    sparse.resize(at as u64);
                }
            }
            assert_eq!(sparse.read(0, 100_000), plain);
        }
    }
}
