//! Several addresses of one server, tried side by side (RFC 8305): a black hole among them costs 250 ms.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

/// How long an attempt has for itself before the next address is tried too (RFC 8305, section 5).
const NEXT_AFTER: Duration = Duration::from_millis(250);
/// A name may have any number of addresses; more are not tried.
const ADDRESSES_MAX: usize = 16;

/// Attempts each address until one succeeds, and drops the other attempts. If all fail the last error counts, but an
/// error that `says_most` remains. `None` if there is no address.
pub(super) async fn side_by_side<T, E, F: Future<Output = Result<T, E>>>(
    addresses: impl IntoIterator<Item = SocketAddr>,
    says_most: impl Fn(&E) -> bool,
    attempt: impl Fn(SocketAddr) -> F,
) -> Option<Result<T, E>> {
    let mut waiting = in_turns(addresses.into_iter().take(ADDRESSES_MAX)).into_iter();
    let (mut attempts, mut failed) = (FuturesUnordered::new(), None);
    loop {
        match waiting.next() {
            Some(address) => attempts.push(attempt(address)),
            None if attempts.is_empty() => return failed.map(Err),
            None => {}
        }
        let ended = match waiting.len() {
            0 => attempts.next().await,
            _ => timeout(NEXT_AFTER, attempts.next()).await.unwrap_or_default(),
        };
        match ended {
            Some(Ok(connected)) => return Some(Ok(connected)),
            Some(Err(error)) if !failed.as_ref().is_some_and(&says_most) => failed = Some(error),
            Some(Err(_)) | None => {}
        }
    }
}

/// Puts an address of each kind behind one of the other, from the first on, as long as there are both.
fn in_turns(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let addresses: Vec<_> = addresses.collect();
    let Some(first) = addresses.first() else { return addresses };
    let (like_first, others): (Vec<SocketAddr>, Vec<SocketAddr>) =
        addresses.iter().copied().partition(|address| address.is_ipv4() == first.is_ipv4());
    let (mut like_first, mut others) = (like_first.into_iter(), others.into_iter());
    let mut ordered = Vec::with_capacity(addresses.len());
    while ordered.len() < addresses.len() {
        ordered.extend(like_first.next());
        ordered.extend(others.next());
    }
    ordered
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    /// Tries these ports, whose attempts end like this after so many milliseconds each. Returns the result, and after
    /// how many milliseconds it came.
    async fn tried(fates: &[(u16, u64, Result<(), ()>)]) -> (Option<Result<u16, u16>>, u128) {
        let begun = Instant::now();
        let addresses = fates.iter().map(|(port, ..)| SocketAddr::from(([127, 0, 0, 1], *port)));
        let attempt = |address: SocketAddr| async move {
            let (port, after_ms, fate) = *fates.iter().find(|(port, ..)| *port == address.port()).unwrap();
            sleep(Duration::from_millis(after_ms)).await;
            fate.map(|()| port).map_err(|()| port)
        };
        let ended = side_by_side(addresses, |port| *port >= 100, attempt).await;
        (ended, begun.elapsed().as_millis())
    }

    const HOLE_MS: u64 = 60_000;

    #[tokio::test(start_paused = true)]
    async fn a_black_hole_costs_a_quarter_of_a_second() {
        assert_eq!(tried(&[(1, HOLE_MS, Err(())), (2, 10, Ok(()))]).await, (Some(Ok(2)), 260));
        let two_holes = [(1, HOLE_MS, Err(())), (2, HOLE_MS, Err(())), (3, 10, Ok(()))];
        assert_eq!(tried(&two_holes).await, (Some(Ok(3)), 510));
        assert_eq!(tried(&[(1, 10, Ok(())), (2, 0, Ok(()))]).await, (Some(Ok(1)), 10), "the first has the start");
        assert_eq!(tried(&[(1, 400, Ok(())), (2, HOLE_MS, Ok(()))]).await, (Some(Ok(1)), 400), "and goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_refuses_costs_nothing_and_the_last_error_counts() {
        assert_eq!(tried(&[(1, 5, Err(())), (2, 10, Ok(()))]).await, (Some(Ok(2)), 15));
        assert_eq!(tried(&[(1, 5, Err(())), (2, 10, Err(()))]).await, (Some(Err(2)), 15));
        assert_eq!(tried(&[(100, 5, Err(())), (2, 10, Err(()))]).await, (Some(Err(100)), 15), "it says most");
        assert_eq!(tried(&[]).await, (None, 0));
    }

    #[test]
    fn kinds_take_turns_from_the_first_on() {
        let parse = |text: &str| text.split(' ').map(|address| address.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let ordered = in_turns(parse("[::1]:1 [::2]:1 [::3]:1 1.0.0.1:1 1.0.0.2:1").into_iter());
        assert_eq!(ordered, parse("[::1]:1 1.0.0.1:1 [::2]:1 1.0.0.2:1 [::3]:1"));
        assert_eq!(in_turns(parse("1.0.0.1:1 1.0.0.2:1").into_iter()), parse("1.0.0.1:1 1.0.0.2:1"));
    }
}
