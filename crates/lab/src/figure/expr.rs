//! Small expressions over the cells of a figure: what a column of a table shows, and what is
//! compared with a claim.
//!
//! `home[ext4] / home[UBJ]` is a ratio for each point of the figure; `mean(...)` makes one number
//! of them. A cell reference is a number of a run, with the system in brackets. Settings behind a
//! semicolon select some of the points: `durable[DJ; differ=10 file=512M]`.
//!
//! | function | of the points |
//! |---|---|
//! | `mean`, `sum`, `least`, `most` | the geometric mean, the sum, the least, the most |
//! | `first`, `last` | the first point, the last one |
//! | `spread` | the most to the least |
//! | `step` | the least of what each point is to the one before it: above 1 all rise |
//! | `min`, `max` | of several values, for each point |
//! | `geo` | the geometric mean of several values, for each point |
//! | `list` | of several values, one after the other |
//! | `discord(a, b)` | pairs of points in which a rises and b falls, of all pairs |

use anyhow::{Context, Result, bail, ensure};

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// A number.
    Just(f64),
    /// A number of a run, a system, and settings that points must have.
    Cell(String, String, Vec<String>),
    /// One operation on two values.
    Two(char, Box<Expr>, Box<Expr>),
    /// A function.
    Call(String, Vec<Expr>),
}

/// Returns a number of a system at each point that has these settings.
pub type Cells<'a> = &'a dyn Fn(&str, &str, &[String]) -> Result<Vec<f64>>;

impl Expr {
    /// Reads an expression.
    ///
    /// # Errors
    /// The text is no expression; the error says where.
    pub fn parse(text: &str) -> Result<Self> {
        let mut parser = Parser { rest: text };
        let expr = parser.sum().with_context(|| text.to_owned())?;
        let rest = parser.rest.trim();
        ensure!(rest.is_empty(), "{text}: unexpected {rest}");
        Ok(expr)
    }

    /// Returns the value: one number, or one per point.
    ///
    /// # Errors
    /// A cell that is not there; values with different numbers of points.
    pub fn value(&self, cells: Cells<'_>) -> Result<Vec<f64>> {
        match self {
            Self::Just(number) => Ok(vec![*number]),
            Self::Cell(number, system, settings) => cells(number, system, settings),
            Self::Two(operation, a, b) => {
                let (a, b) = (a.value(cells)?, b.value(cells)?);
                each(&[a, b], |values| match operation {
                    '+' => values[0] + values[1],
                    '-' => values[0] - values[1],
                    '*' => values[0] * values[1],
                    _ => values[0] / values[1],
                })
            }
            Self::Call(name, of) => {
                let of: Vec<_> = of.iter().map(|e| e.value(cells)).collect::<Result<_>>()?;
                call(name, &of)
            }
        }
    }
}

/// Computes a number for each point; a single value stands for all points.
fn each(of: &[Vec<f64>], what: impl Fn(&[f64]) -> f64) -> Result<Vec<f64>> {
    let points = of.iter().map(Vec::len).max().unwrap_or(0);
    let fit = |values: &Vec<f64>| values.len() == points || values.len() == 1;
    ensure!(of.iter().all(fit), "values of different numbers of points");
    let at = |n: usize| -> Vec<f64> { of.iter().map(|v| *v.get(n).unwrap_or(&v[0])).collect() };
    Ok((0..points).map(|n| what(&at(n))).collect())
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn call(name: &str, of: &[Vec<f64>]) -> Result<Vec<f64>> {
    match (name, of) {
        ("min", _) => return each(of, least),
        ("max", _) => return each(of, most),
        ("geo", _) => {
            let geo = |values: &[f64]| {
                let logs: f64 = values.iter().map(|value| value.ln()).sum();
                (logs / values.len() as f64).exp()
            };
            return each(of, geo);
        }
        ("list", _) => return Ok(of.concat()),
        ("discord", [a, b]) => return Ok(vec![discord(a, b)]),
        _ => {}
    }
    let [values] = of else {
        bail!("{name} has one argument");
    };
    ensure!(!values.is_empty(), "{name} of nothing");
    let logs: f64 = values.iter().map(|value| value.ln()).sum();
    Ok(vec![match name {
        "mean" => (logs / values.len() as f64).exp(),
        "sum" => values.iter().sum(),
        "least" => least(values),
        "most" => most(values),
        "first" => values[0],
        "last" => values[values.len() - 1],
        "spread" => most(values) / least(values),
        "step" => {
            let steps: Vec<f64> = values.windows(2).map(|pair| pair[1] / pair[0]).collect();
            least(&steps)
        }
        _ => bail!("there is no function {name}"),
    }])
}

/// Returns the share of pairs of points in which one point has more of `a` and less of `b`.
fn discord(a: &[f64], b: &[f64]) -> f64 {
    let pairs = (0..a.len()).flat_map(|n| (0..n).map(move |m| (m, n)));
    let is_discordant = |(m, n): &(usize, usize)| (a[*n] - a[*m]) * (b[*n] - b[*m]) < 0.0;
    let all = a.len() * a.len().saturating_sub(1) / 2;
    pairs.filter(is_discordant).count() as f64 / all.max(1) as f64
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    /// Takes one of these signs, if it comes next.
    fn sign(&mut self, signs: &str) -> Option<char> {
        self.rest = self.rest.trim_start();
        let sign = self.rest.chars().next().filter(|c| signs.contains(*c))?;
        self.rest = &self.rest[sign.len_utf8()..];
        Some(sign)
    }

    fn expect(&mut self, sign: char) -> Result<()> {
        let found = self.sign(&sign.to_string());
        found
            .map(|_| ())
            .with_context(|| format!("no {sign} before {}", self.rest))
    }

    /// Takes the characters that `is_part` accepts.
    fn word(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        self.rest = self.rest.trim_start();
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn sum(&mut self) -> Result<Expr> {
        let mut left = self.product()?;
        while let Some(sign) = self.sign("+-") {
            left = Expr::Two(sign, Box::new(left), Box::new(self.product()?));
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Expr> {
        let mut left = self.one()?;
        while let Some(sign) = self.sign("*/") {
            left = Expr::Two(sign, Box::new(left), Box::new(self.one()?));
        }
        Ok(left)
    }

    fn one(&mut self) -> Result<Expr> {
        if self.sign("(").is_some() {
            let inner = self.sum()?;
            self.expect(')')?;
            return Ok(inner);
        }
        let word = self.word(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_');
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(Expr::Just(word.parse()?));
        }
        ensure!(!word.is_empty(), "nothing before {}", self.rest);
        if self.sign("[").is_some() {
            let inside = self.word(|c| c != ']');
            self.expect(']')?;
            let (system, settings) = inside.split_once(';').unwrap_or((inside, ""));
            let settings = settings.split_whitespace().map(str::to_owned).collect();
            return Ok(Expr::Cell(
                word.to_owned(),
                system.trim().to_owned(),
                settings,
            ));
        }
        self.expect('(')?;
        let mut of = vec![self.sum()?];
        while self.sign(",").is_some() {
            of.push(self.sum()?);
        }
        self.expect(')')?;
        Ok(Expr::Call(word.to_owned(), of))
    }
}

#[cfg(test)]
mod tests {
    use super::Expr;

    fn value(text: &str) -> Vec<f64> {
        let cells = |number: &str, system: &str, settings: &[String]| {
            Ok(match (number, system, settings.len()) {
                ("home", "ext4 journal", 0) => vec![2.0, 8.0, 6.0],
                ("home", "ext4 journal", _) => vec![8.0],
                _ => vec![1.0, 2.0, 3.0],
            })
        };
        Expr::parse(text).and_then(|e| e.value(&cells)).expect(text)
    }

    #[test]
    fn what_is_written_is_what_is_computed() {
        for (text, is) in [
            ("home[ext4 journal] / home[UBJ]", vec![2.0, 4.0, 2.0]),
            ("1 + 2 * 3 - 4 / 2", vec![5.0]),
            ("(1 + 2) * home[UBJ]", vec![3.0, 6.0, 9.0]),
            ("home[ext4 journal; file=8M order=random] - 1", vec![7.0]),
            ("max(home[ext4 journal], home[UBJ], 7)", vec![7.0, 8.0, 7.0]),
            ("least(home[ext4 journal])", vec![2.0]),
            ("spread(home[UBJ])", vec![3.0]),
            ("step(home[ext4 journal])", vec![0.75]),
            ("last(home[UBJ]) - first(home[UBJ])", vec![2.0]),
            ("discord(home[UBJ], home[ext4 journal])", vec![1.0 / 3.0]),
        ] {
            assert_eq!(value(text), is, "{text}");
        }
        assert!((value("mean(home[UBJ])")[0] - 6f64.cbrt()).abs() < 1e-12);
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in ["", "1 +", "home[UBJ", "mean 1", "speed(1)", "1 2"] {
            let none = |_: &str, _: &str, _: &[String]| Ok(vec![]);
            assert!(
                Expr::parse(text).and_then(|e| e.value(&none)).is_err(),
                "{text}"
            );
        }
    }
}
