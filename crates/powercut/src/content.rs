//! The content of a file as a value: pages that clones share.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// The bytes of a file. Bytes that were never written are zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The file's length in bytes.
    size: u64,
    /// The written pages, by number. Bytes behind `size` stay until [`Self::cut`] removes them.
    pages: BTreeMap<u64, Bytes>,
}

/// Shared bytes. Their text form is hexadecimal.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Bytes(pub Arc<[u8]>);

impl From<Bytes> for String {
    fn from(bytes: Bytes) -> Self {
        let digit = |n: u8| char::from_digit(u32::from(n), 16).unwrap_or('0');
        let digits = bytes.0.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]);
        digits.collect()
    }
}

impl TryFrom<String> for Bytes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digit = |c: &u8| char::from(*c).to_digit(16);
        let pair = |pair: &[u8]| match pair {
            [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
            _ => None,
        };
        let bytes: Option<Arc<[u8]>> = text.as_bytes().chunks(2).map(pair).collect();
        bytes.map(Self).ok_or_else(|| "not hexadecimal".to_owned())
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Serializes maps whose keys are bytes: JSON has text as keys only.
pub mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Bytes;

    /// Writes the map as a list of pairs.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<V: Serialize, S: Serializer>(
        map: &BTreeMap<Vec<u8>, V>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let pairs = map.iter().map(|(key, v)| (Bytes(key.as_slice().into()), v));
        to.collect_seq(pairs)
    }

    /// Reads the map from a list of pairs.
    ///
    /// # Errors
    /// Those of the deserializer.
    pub fn deserialize<'d, V: Deserialize<'d>, D: Deserializer<'d>>(
        from: D,
    ) -> Result<BTreeMap<Vec<u8>, V>, D::Error> {
        let pairs: Vec<(Bytes, V)> = Vec::deserialize(from)?;
        let pairs = pairs.into_iter().map(|(key, v)| (key.0.to_vec(), v));
        Ok(pairs.collect())
    }
}

impl Content {
    /// The file's length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Sets the length. Bytes that were written behind the old end appear.
    pub fn set_size(&mut self, size: u64) {
        self.size = size;
    }

    /// True if bytes were written behind the end.
    pub(crate) fn goes_beyond(&self) -> bool {
        let last = self.pages.last_key_value();
        last.is_some_and(|(number, page)| {
            let first = number * PAGE;
            let kept = self.size.saturating_sub(first).min(PAGE) as usize;
            page.0[kept..].iter().any(|byte| *byte != 0) || first >= self.size
        })
    }

    /// Sets the length and removes all bytes behind it.
    pub fn cut(&mut self, size: u64) {
        self.size = size;
        self.pages.split_off(&size.div_ceil(PAGE));
        let (last, kept) = (size / PAGE, (size % PAGE) as usize);
        if let Some(page) = self.pages.get_mut(&last)
            && page.0[kept..].iter().any(|byte| *byte != 0)
        {
            let mut bytes = page.0.to_vec();
            bytes[kept..].fill(0);
            *page = Bytes(bytes.into());
        }
    }

    /// Writes bytes, also behind the end. The length stays.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while at < end {
            let (number, within) = (at / PAGE, (at % PAGE) as usize);
            let here = (end - at).min(PAGE - within as u64) as usize;
            let from = (at - offset) as usize;
            let mut page = match self.pages.get(&number) {
                Some(page) => page.0.to_vec(),
                None => vec![0; PAGE as usize],
            };
            page[within..within + here].copy_from_slice(&bytes[from..from + here]);
            self.pages.insert(number, Bytes(page.into()));
            at += here as u64;
        }
    }

    /// Makes bytes zero. The length stays.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let touched = self.pages.range(offset / PAGE..end.div_ceil(PAGE));
        let touched: Vec<u64> = touched.map(|(number, _)| *number).collect();
        for number in touched {
            let first = number * PAGE;
            let from = offset.max(first);
            let to = end.min(first + PAGE);
            if from < to {
                self.write(from, &vec![0; (to - from) as usize]);
            }
        }
    }

    /// Reads bytes. Behind the end, these are the bytes that a larger length would show.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        out.fill(0);
        let end = offset + out.len() as u64;
        for (number, page) in self.pages.range(offset / PAGE..end.div_ceil(PAGE)) {
            let first = number * PAGE;
            let (from, to) = (offset.max(first), end.min(first + PAGE));
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&page.0[(from - first) as usize..(to - first) as usize]);
        }
    }

    /// The written pages up to the end, in order, each with its offset.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages
            .range(..self.size.div_ceil(PAGE))
            .map(|(number, page)| {
                let first = number * PAGE;
                let here = (self.size - first).min(PAGE) as usize;
                (first, &page.0[..here])
            })
    }

    /// Returns the offset of the first byte that differs, up to the shorter length.
    pub fn first_difference(&self, other: &Self) -> Option<u64> {
        let both = self.size.min(other.size);
        let numbers = self.pages.keys().chain(other.pages.keys());
        let mut numbers: Vec<u64> = numbers.copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        let (mut mine, mut theirs) = ([0; PAGE as usize], [0; PAGE as usize]);
        numbers.into_iter().find_map(|number| {
            self.read(number * PAGE, &mut mine);
            other.read(number * PAGE, &mut theirs);
            let at = mine.iter().zip(&theirs).position(|(a, b)| a != b)?;
            let at = number * PAGE + at as u64;
            (at < both).then_some(at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(content: &Content) -> String {
        let mut out = vec![0; content.size() as usize];
        content.read(0, &mut out);
        String::from_utf8_lossy(&out).replace('\0', ".")
    }

    #[test]
    fn what_is_cut_off_does_not_come_back() {
        let mut content = Content::default();
        content.write(0, b"secret and more");
        assert_eq!(text(&content), "");
        content.set_size(6);
        assert_eq!(text(&content), "secret");
        content.cut(2);
        content.set_size(4);
        assert_eq!(text(&content), "se..");
        content.write(3, b"x");
        content.zero(0, 1);
        assert_eq!(text(&content), ".e.x");
    }

    #[test]
    fn pages_are_changed_in_parts() {
        let mut content = Content::default();
        content.set_size(3 * PAGE);
        content.write(PAGE - 1, b"abc");
        let mut other = content.clone();
        other.zero(PAGE, 1);
        let mut out = [0; 5];
        other.read(PAGE - 2, &mut out);
        assert_eq!(&out, b"\0a\0c\0");
        assert_eq!(content.first_difference(&other), Some(PAGE));
        let there: Vec<_> = content.pieces().map(|(at, p)| (at, p.len())).collect();
        assert_eq!(there, [(0, 4096), (PAGE, 4096)]);
    }

    #[test]
    fn bytes_go_through_text() {
        let bytes = Bytes((0..=255).collect());
        let text = String::from(bytes.clone());
        assert_eq!(Bytes::try_from(text), Ok(bytes));
        assert!(Bytes::try_from("0g".to_owned()).is_err());
        assert!(Bytes::try_from("000".to_owned()).is_err());
    }
}
