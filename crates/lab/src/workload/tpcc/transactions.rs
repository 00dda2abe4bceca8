//! TPC-C's five transactions (clauses 2.4 to 2.8), each as its clause has it: the same rows read
//! and changed, in the same order.

use anyhow::{Context, Result, ensure};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::random::{A_CUSTOMER, A_ITEM, A_LAST, Constants, last_name, nurand, uniform};
use super::scale::{Cardinality, DISTRICTS, Kind, Outcome};
use stetfs_testkit::rng::Rng;

/// Bytes of C_DATA at most.
const CUSTOMER_DATA: usize = 500;

/// All terminals, whose work one connection does in turn.
pub(super) struct Terminals<'a> {
    pub(super) db: &'a Connection,
    pub(super) size: Cardinality,
    pub(super) constants: Constants,
    pub(super) rng: Rng,
    /// Seconds since 1970; one second passes per transaction.
    pub(super) now: u64,
    pub(super) outcome: &'a mut Outcome,
}

/// How a transaction ends.
enum End {
    Commit,
    Rollback,
}

/// The customer of a payment or a question: by number or by last name.
enum Who {
    Number(u64),
    LastName(String),
}

/// A line of a new order.
struct Line {
    i_id: u64,
    supply_w_id: u32,
    quantity: u64,
}

/// A customer as Payment finds him.
struct Payer {
    c_id: i64,
    is_bad_credit: bool,
    balance: i64,
    ytd_payment: i64,
    payments: i64,
}

impl Payer {
    const COLUMNS: &str = "c_id, c_credit, c_balance, c_ytd_payment, c_payment_cnt, c_first, \
        c_middle, c_last, c_street_1, \
                           c_street_2, c_city, c_state, c_zip, c_phone, c_since, c_credit_lim, \
                           c_discount";

    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let credit: String = row.get(1)?;
        Ok(Self {
            c_id: row.get(0)?,
            is_bad_credit: credit == "BC",
            balance: row.get(2)?,
            ytd_payment: row.get(3)?,
            payments: row.get(4)?,
        })
    }
}

impl Terminals<'_> {
    /// Does one transaction. A failure leaves it undone.
    pub(super) fn one(&mut self, kind: Kind) -> Result<()> {
        self.now += 1;
        let w_id = uniform(&mut self.rng, 1, u64::from(self.size.warehouses)) as u32;
        let begin = match kind {
            Kind::OrderStatus | Kind::StockLevel => "BEGIN",
            Kind::NewOrder | Kind::Payment | Kind::Delivery => "BEGIN IMMEDIATE",
        };
        self.db.prepare_cached(begin)?.execute([])?;
        let end = match kind {
            Kind::NewOrder => self.new_order(w_id),
            Kind::Payment => self.payment(w_id),
            Kind::OrderStatus => self.order_status(w_id),
            Kind::Delivery => self.delivery(w_id),
            Kind::StockLevel => self.stock_level(w_id),
        };
        let word = match end {
            Ok(End::Commit) => "COMMIT",
            Ok(End::Rollback) | Err(_) => "ROLLBACK",
        };
        let ended = self.db.prepare_cached(word)?.execute([]);
        end?;
        ended?;
        Ok(())
    }

    fn district(&mut self) -> u64 {
        uniform(&mut self.rng, 1, u64::from(DISTRICTS))
    }

    fn customer(&mut self) -> u64 {
        let c = self.constants.customer;
        nurand(
            &mut self.rng,
            A_CUSTOMER,
            c,
            1,
            u64::from(self.size.customers),
        )
    }

    /// Draws a customer: clauses 2.5.1.2 and 2.6.1.2.
    fn who(&mut self) -> Who {
        self.outcome.by_name[1] += 1;
        if self.rng.chance(60) {
            self.outcome.by_name[0] += 1;
            let c = self.constants.last_run;
            let number = nurand(&mut self.rng, A_LAST, c, 0, self.size.names() - 1);
            Who::LastName(last_name(number))
        } else {
            Who::Number(self.customer())
        }
    }

    /// Draws another warehouse; `None` when there is none.
    fn other_warehouse(&mut self, w_id: u32) -> Option<u32> {
        let others = u64::from(self.size.warehouses) - 1;
        (others > 0).then(|| {
            let n = uniform(&mut self.rng, 1, others) as u32;
            n + u32::from(n >= w_id)
        })
    }

    /// Draws the lines of an order: clause 2.4.1.
    fn draw_lines(&mut self, w_id: u32) -> Vec<Line> {
        let count = uniform(&mut self.rng, 5, 15);
        let rolls_back = self.rng.chance(1);
        let mut lines = Vec::with_capacity(count as usize);
        for n in 1..=count {
            let c = self.constants.item;
            let items = u64::from(self.size.items);
            let i_id = if rolls_back && n == count {
                // A number that no item has.
                items + 1
            } else {
                nurand(&mut self.rng, A_ITEM, c, 1, items)
            };
            let is_remote = self.rng.chance(1);
            let other = if is_remote {
                self.other_warehouse(w_id)
            } else {
                None
            };
            self.outcome.remote_lines += u64::from(other.is_some());
            lines.push(Line {
                i_id,
                supply_w_id: other.unwrap_or(w_id),
                quantity: uniform(&mut self.rng, 1, 10),
            });
        }
        lines
    }

    fn new_order(&mut self, w_id: u32) -> Result<End> {
        self.outcome.new_orders += 1;
        let (d_id, c_id) = (self.district(), self.customer());
        let lines = self.draw_lines(w_id);
        let db = self.db;
        let _tax: i64 = db
            .prepare_cached("SELECT w_tax FROM warehouse WHERE w_id = ?")?
            .query_row([w_id], |row| row.get(0))?;
        let (_tax, o_id): (i64, i64) = db
            .prepare_cached(
                "SELECT d_tax, d_next_o_id FROM district WHERE d_w_id = ? AND d_id = ?",
            )?
            .query_row(params![w_id, d_id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        one_row(
            db.prepare_cached("UPDATE district SET d_next_o_id = ? WHERE d_w_id = ? AND d_id = ?")?
                .execute(params![o_id + 1, w_id, d_id])?,
        )?;
        let _customer: (i64, String, String) = db
            .prepare_cached(
                "SELECT c_discount, c_last, c_credit FROM customer WHERE c_w_id = ? AND c_d_id = ? \
                    AND c_id = ?",
            )?
            .query_row(params![w_id, d_id, c_id], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?;
        let all_local = lines.iter().all(|line| line.supply_w_id == w_id);
        db.prepare_cached("INSERT INTO orders VALUES (?, ?, ?, ?, ?, NULL, ?, ?)")?
            .execute(params![
                o_id,
                d_id,
                w_id,
                c_id,
                self.now,
                lines.len(),
                all_local
            ])?;
        db.prepare_cached("INSERT INTO new_order VALUES (?, ?, ?)")?
            .execute(params![o_id, d_id, w_id])?;
        for (n, line) in lines.iter().enumerate() {
            if !self.order_line((w_id, d_id, o_id), n + 1, line)? {
                self.outcome.rolled_back += 1;
                return Ok(End::Rollback);
            }
        }
        Ok(End::Commit)
    }

    /// Orders a line; false when there is no such item.
    fn order_line(
        &self,
        (w_id, d_id, o_id): (u32, u64, i64),
        number: usize,
        line: &Line,
    ) -> Result<bool> {
        let db = self.db;
        let price: Option<i64> = db
            .prepare_cached("SELECT i_price, i_name, i_data FROM item WHERE i_id = ?")?
            .query_row([line.i_id], |row| {
                let _name_and_data: (String, String) = (row.get(1)?, row.get(2)?);
                row.get(0)
            })
            .optional()?;
        let Some(price) = price else {
            return Ok(false);
        };
        let select = format!(
            "SELECT s_quantity, s_ytd, s_order_cnt, s_remote_cnt, s_data, s_dist_{d_id:02} FROM \
                stock WHERE s_w_id = ? AND s_i_id = ?"
        );
        let key = params![line.supply_w_id, line.i_id];
        let (has, ytd, orders, remote, info): (i64, i64, i64, i64, String) =
            db.prepare_cached(&select)?.query_row(key, |row| {
                let _data: String = row.get(4)?;
                Ok((
                    row.get(0)?,
                    row.get(1)?,
                    row.get(2)?,
                    row.get(3)?,
                    row.get(5)?,
                ))
            })?;
        let wanted = line.quantity as i64;
        let left = if has >= wanted + 10 {
            has - wanted
        } else {
            has - wanted + 91
        };
        let is_remote = i64::from(line.supply_w_id != w_id);
        one_row(
            db.prepare_cached(
                "UPDATE stock SET s_quantity = ?, s_ytd = ?, s_order_cnt = ?, s_remote_cnt = ? \
                    WHERE s_w_id = ? AND s_i_id = ?",
            )?
            .execute(params![
                left,
                ytd + wanted,
                orders + 1,
                remote + is_remote,
                line.supply_w_id,
                line.i_id
            ])?,
        )?;
        db.prepare_cached("INSERT INTO order_line VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?, ?)")?
            .execute(params![
                o_id,
                d_id,
                w_id,
                number,
                line.i_id,
                line.supply_w_id,
                wanted,
                wanted * price,
                info
            ])?;
        Ok(true)
    }

    fn payment(&mut self, w_id: u32) -> Result<End> {
        self.outcome.payments += 1;
        let d_id = self.district();
        let is_remote = self.rng.chance(15);
        let (c_w_id, c_d_id) = if is_remote {
            let other = self.other_warehouse(w_id);
            self.outcome.remote_payments += u64::from(other.is_some());
            (other.unwrap_or(w_id), self.district())
        } else {
            (w_id, d_id)
        };
        let who = self.who();
        let amount = uniform(&mut self.rng, 100, 500_000) as i64;
        let db = self.db;
        let name: String = db
            .prepare_cached(
                "SELECT w_name, w_street_1, w_street_2, w_city, w_state, w_zip FROM warehouse \
                    WHERE w_id = ?",
            )?
            .query_row([w_id], |row| row.get(0))?;
        one_row(
            db.prepare_cached("UPDATE warehouse SET w_ytd = w_ytd + ? WHERE w_id = ?")?
                .execute(params![amount, w_id])?,
        )?;
        let district: String = db
            .prepare_cached(
                "SELECT d_name, d_street_1, d_street_2, d_city, d_state, d_zip FROM district WHERE \
                    d_w_id = ? AND d_id = ?",
            )?
            .query_row(params![w_id, d_id], |row| row.get(0))?;
        one_row(
            db.prepare_cached(
                "UPDATE district SET d_ytd = d_ytd + ? WHERE d_w_id = ? AND d_id = ?",
            )?
            .execute(params![amount, w_id, d_id])?,
        )?;
        let payer = self.find_payer(c_w_id, c_d_id, &who)?;
        self.pay((c_w_id, c_d_id), &payer, (w_id, d_id), amount)?;
        db.prepare_cached("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?)")?
            .execute(params![
                payer.c_id,
                c_d_id,
                c_w_id,
                d_id,
                w_id,
                self.now,
                amount,
                format!("{name}    {district}")
            ])?;
        Ok(End::Commit)
    }

    /// Finds the customer. Of those with the name, takes the one in the middle, by first name.
    fn find_payer(&self, w_id: u32, d_id: u64, who: &Who) -> Result<Payer> {
        let columns = Payer::COLUMNS;
        match who {
            Who::Number(c_id) => {
                let sql = format!(
                    "SELECT {columns} FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?"
                );
                let mut select = self.db.prepare_cached(&sql)?;
                Ok(select.query_row(params![w_id, d_id, c_id], Payer::of)?)
            }
            Who::LastName(name) => {
                let sql = format!(
                    "SELECT {columns} FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_last = ? \
                        ORDER BY c_first"
                );
                let mut select = self.db.prepare_cached(&sql)?;
                let found = select.query_map(params![w_id, d_id, name], Payer::of)?;
                middle(found.collect::<rusqlite::Result<_>>()?)
                    .with_context(|| format!("nobody is called {name}"))
            }
        }
    }

    fn pay(
        &self,
        (c_w_id, c_d_id): (u32, u64),
        payer: &Payer,
        (w_id, d_id): (u32, u64),
        amount: i64,
    ) -> Result<()> {
        let (balance, ytd) = (payer.balance - amount, payer.ytd_payment + amount);
        let payments = payer.payments + 1;
        let key = (c_w_id, c_d_id, payer.c_id);
        let changed = if payer.is_bad_credit {
            let data: String = self
                .db
                .prepare_cached(
                    "SELECT c_data FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
                )?
                .query_row(params![key.0, key.1, key.2], |row| row.get(0))?;
            let mut data = format!(
                "{} {c_d_id} {c_w_id} {d_id} {w_id} {}.{:02} {data}",
                payer.c_id,
                amount / 100,
                amount % 100
            );
            data.truncate(CUSTOMER_DATA);
            self.db
                .prepare_cached(
                    "UPDATE customer SET c_balance = ?, c_ytd_payment = ?, c_payment_cnt = ?, \
                            c_data = ? \
                         WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
                )?
                .execute(params![balance, ytd, payments, data, key.0, key.1, key.2])?
        } else {
            self.db
                .prepare_cached(
                    "UPDATE customer SET c_balance = ?, c_ytd_payment = ?, c_payment_cnt = ? WHERE \
                        c_w_id = ? AND c_d_id = ? AND c_id = ?",
                )?
                .execute(params![balance, ytd, payments, key.0, key.1, key.2])?
        };
        one_row(changed)
    }

    fn order_status(&mut self, w_id: u32) -> Result<End> {
        self.outcome.order_statuses += 1;
        let d_id = self.district();
        let who = self.who();
        let payer = self.find_payer(w_id, d_id, &who)?;
        let db = self.db;
        let newest: Option<i64> = db
            .prepare_cached(
                "SELECT o_id, o_entry_d, o_carrier_id FROM orders WHERE o_w_id = ? AND o_d_id = ? \
                    AND o_c_id = ? \
                 ORDER BY o_id DESC LIMIT 1",
            )?
            .query_row(params![w_id, d_id, payer.c_id], |row| row.get(0))
            .optional()?;
        // Every customer has an order from the beginning.
        let o_id = newest.context("a customer without an order")?;
        let mut lines = db.prepare_cached(
            "SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d FROM order_line \
             WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?",
        )?;
        let amounts = lines.query_map(params![w_id, d_id, o_id], |row| row.get::<_, i64>(3))?;
        let amounts: Vec<i64> = amounts.collect::<rusqlite::Result<_>>()?;
        ensure!((5..=15).contains(&amounts.len()), "{} lines", amounts.len());
        Ok(End::Commit)
    }

    fn delivery(&mut self, w_id: u32) -> Result<End> {
        self.outcome.deliveries += 1;
        let carrier = uniform(&mut self.rng, 1, 10);
        for d_id in 1..=DISTRICTS {
            self.deliver(w_id, d_id, carrier)?;
        }
        Ok(End::Commit)
    }

    /// Delivers the oldest order of a district that is not delivered, if there is one.
    fn deliver(&self, w_id: u32, d_id: u32, carrier: u64) -> Result<()> {
        let db = self.db;
        let oldest: Option<i64> = db
            .prepare_cached("SELECT min(no_o_id) FROM new_order WHERE no_w_id = ? AND no_d_id = ?")?
            .query_row([w_id, d_id], |row| row.get(0))?;
        let Some(o_id) = oldest else {
            return Ok(());
        };
        let key = params![w_id, d_id, o_id];
        one_row(
            db.prepare_cached(
                "DELETE FROM new_order WHERE no_w_id = ? AND no_d_id = ? AND no_o_id = ?",
            )?
            .execute(key)?,
        )?;
        let c_id: i64 = db
            .prepare_cached(
                "SELECT o_c_id FROM orders WHERE o_w_id = ? AND o_d_id = ? AND o_id = ?",
            )?
            .query_row(key, |row| row.get(0))?;
        one_row(
            db.prepare_cached(
                "UPDATE orders SET o_carrier_id = ? WHERE o_w_id = ? AND o_d_id = ? AND o_id = ?",
            )?
            .execute(params![carrier, w_id, d_id, o_id])?,
        )?;
        let lines = db
            .prepare_cached(
                "UPDATE order_line SET ol_delivery_d = ? WHERE ol_w_id = ? AND ol_d_id = ? AND \
                    ol_o_id = ?",
            )?
            .execute(params![self.now, w_id, d_id, o_id])?;
        ensure!((5..=15).contains(&lines), "{lines} lines");
        let amount: i64 = db
            .prepare_cached(
                "SELECT sum(ol_amount) FROM order_line WHERE ol_w_id = ? AND ol_d_id = ? AND \
                    ol_o_id = ?",
            )?
            .query_row(key, |row| row.get(0))?;
        one_row(
            db.prepare_cached(
                "UPDATE customer SET c_balance = c_balance + ?, c_delivery_cnt = c_delivery_cnt + \
                    1 \
                 WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
            )?
            .execute(params![amount, w_id, d_id, c_id])?,
        )
    }

    fn stock_level(&mut self, w_id: u32) -> Result<End> {
        self.outcome.stock_levels += 1;
        let d_id = self.district();
        let threshold = uniform(&mut self.rng, 10, 20);
        let db = self.db;
        let next: i64 = db
            .prepare_cached("SELECT d_next_o_id FROM district WHERE d_w_id = ? AND d_id = ?")?
            .query_row(params![w_id, d_id], |row| row.get(0))?;
        let _low: i64 = db
            .prepare_cached(
                "SELECT count(DISTINCT s_i_id) FROM order_line, stock \
                 WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id >= ? AND ol_o_id < ? \
                 AND s_w_id = ol_w_id AND s_i_id = ol_i_id AND s_quantity < ?",
            )?
            .query_row(params![w_id, d_id, next - 20, next, threshold], |row| {
                row.get(0)
            })?;
        Ok(End::Commit)
    }
}

/// Checks that a change has met one row.
fn one_row(changed: usize) -> Result<()> {
    ensure!(changed == 1, "{changed} rows were changed, not one");
    Ok(())
}

/// Returns the one in the middle, rounded up (clause 2.5.2.2).
fn middle<T>(mut all: Vec<T>) -> Option<T> {
    match all.len() {
        0 => None,
        n => Some(all.swap_remove((n - 1) / 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::middle;

    #[test]
    fn the_middle_is_rounded_up() {
        for (n, at) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
            assert_eq!(middle((1..=n).collect()), Some(at));
        }
        assert_eq!(middle(Vec::<u8>::new()), None);
    }
}
