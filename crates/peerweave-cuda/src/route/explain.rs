//! Explains, as text, how a collective call is carried out and why.

use std::fmt;

use peerweave_types::ReduceOp;

use super::decide::{Because, Decision};
use super::table::{Bytes, Thresholds, name_of};
use super::{Libraries, Limits, OwnPath, Provider, Query, Route, Routes, Unfit};

/// An explanation of a collective call: the method that would carry out the call, and the reason
/// for this choice. `Display` prints the explanation in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The call to which the explanation applies.
    pub query: Query,
    /// Number of ranks in the team.
    pub ranks: u32,
    /// Size in bytes of a rank's operand or result, whichever is larger.
    pub size_bytes: u64,
    /// The provider that carries out the call.
    pub provider: Provider,
    /// The method and the shape of the launch, such as `Peerweave's kernel, algorithm two_shot, 128
    /// blocks of 512 threads`.
    pub how: String,
    /// The route of Peerweave's kernels. `None` if a library carries out the call, or if the call
    /// needs no kernel.
    pub route: Option<Route>,
    /// The reason for the choice, with the row or the threshold of the route table that determined
    /// the choice.
    pub why: String,
    /// The method that the table or the caller has requested, and the reason why this method is not
    /// used. `None` if the requested method is used.
    pub refused: Option<String>,
    /// The route table that determined the choice: the path of its file, or the name of a built-in
    /// table.
    pub table: String,
}

impl Explanation {
    /// Creates the explanation of a call by a team of `ranks` ranks on `hosts` hosts. A call among
    /// several hosts has only one method, which `how` describes. `table` is the name of the route
    /// table.
    pub(crate) fn between_hosts(query: &Query, ranks: u32, how: &str, hosts: usize, table: &str) -> Self {
        Self {
            query: *query,
            ranks,
            size_bytes: query.size_bytes(ranks),
            provider: Provider::Hosts,
            how: how.to_owned(),
            route: None,
            why: format!("the ranks are on {hosts} hosts"),
            refused: None,
            table: table.to_owned(),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Query { kind, dtype, op, count } = self.query;
        write!(f, "{} of {count} {}", kind.name(), dtype.name())?;
        if kind.reduces() && op != ReduceOp::Sum {
            write!(f, " by {op}")?;
        }
        write!(f, " ({} bytes) by {} ranks: {}", Bytes(self.size_bytes), self.ranks, self.how)?;
        write!(f, "; because {}", self.why)?;
        self.refused.as_ref().map_or(Ok(()), |refused| write!(f, "; not used: {refused}"))
    }
}

impl Routes {
    /// Returns the explanation of a call. `unavailable` is the reason why NCCL cannot be used.
    pub(crate) fn explain(&self, query: &Query, limits: &Limits, libraries: &Libraries, unavailable: &str) -> Explanation {
        let Decision { provider, own, because, refused } = self.decide(query, limits, libraries);
        let (path, route) = path(own);
        Explanation {
            query: *query,
            ranks: limits.ranks,
            size_bytes: query.size_bytes(limits.ranks),
            provider,
            how: if provider == Provider::Nccl { "NCCL".to_owned() } else { path },
            route: route.filter(|_| provider == Provider::Own),
            why: self.reason(because, limits),
            refused: refused.map(|(asked, unfit)| format!("{}, because {}", self.asked(asked), self.unfit(unfit, unavailable))),
            table: self.table.name().to_owned(),
        }
    }

    fn reason(&self, because: Because, limits: &Limits) -> String {
        let name = self.table.name();
        match because {
            Because::Only => "there is no other method".to_owned(),
            Because::Row(row) => format!("the row \"{row}\" of {name} applies"),
            Because::Threshold(at, value) => {
                format!("the line \"threshold {} {}\" of {name} applies", Thresholds::NAMES[at], Bytes(value))
            }
            Because::Staging => format!("each staging buffer of the team has {} bytes", Bytes(limits.bank_bytes)),
            Because::PartialLines => "the length of a part is not a multiple of 16 bytes".to_owned(),
            Because::Library(at) => format!("the row \"{}\" of {name} applies", self.table.libraries[at]),
            Because::Forced(method) => format!("the caller chose {method}"),
        }
    }

    fn asked(&self, because: Because) -> String {
        match because {
            Because::Library(at) => format!("the row \"{}\"", self.table.libraries[at]),
            Because::Forced(method) => format!("the method {method}, which the caller chose"),
            _ => "another route".to_owned(),
        }
    }

    fn unfit(&self, unfit: Unfit, unavailable: &str) -> String {
        match unfit {
            Unfit::Off => "NCCL is not enabled: set PEERWEAVE_NCCL=auto or CudaOptions::nccl".to_owned(),
            Unfit::Unavailable => format!("NCCL cannot be used: {unavailable}"),
            Unfit::Team => "NCCL has a communicator only for the team of all PEs".to_owned(),
            Unfit::Bits => "the bits of NCCL's result could differ from those of Peerweave's kernels".to_owned(),
            Unfit::NoRoom => "the call needs more staging memory than the team has".to_owned(),
            Unfit::NoRow => format!("{} has no row for this method and this number of ranks", self.table.name()),
            Unfit::PartialLines => "the length of a part is not a multiple of 16 bytes".to_owned(),
        }
    }
}

/// Returns a description of the method `own` as text, and the route of the method if it has one.
fn path(own: OwnPath) -> (String, Option<Route>) {
    let shape = |route: Route| {
        let plural = |n: u32, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        format!("{} of {}", plural(route.blocks, "block"), plural(route.threads, "thread"))
    };
    let text = match own {
        OwnPath::Nothing => return ("nothing to do".to_owned(), None),
        OwnPath::Copy => return ("a copy".to_owned(), None),
        OwnPath::Barrier => return ("Peerweave's barrier kernel".to_owned(), None),
        OwnPath::Norm => {
            return ("Peerweave's fused RMSNorm kernel; the number of rows determines the launch shape".to_owned(), None);
        }
        OwnPath::Unsupported => return ("not supported".to_owned(), None),
        OwnPath::Reduction(route) => format!("Peerweave's kernel, algorithm {}, {}", name_of(route.algorithm), shape(route)),
        OwnPath::Lines { route, launches: 1 } => format!("Peerweave's kernel that sends 16-byte lines, {}", shape(route)),
        OwnPath::Lines { route, launches } => {
            format!("{launches} launches of Peerweave's kernel that sends 16-byte lines, {}", shape(route))
        }
        OwnPath::Messages(route) => format!("Peerweave's kernel that sends messages, {}", shape(route)),
        OwnPath::Scattered(route) => {
            format!("Peerweave's kernels (the root scatters parts, and each rank forwards its part), {}", shape(route))
        }
    };
    let (OwnPath::Reduction(route) | OwnPath::Lines { route, .. } | OwnPath::Messages(route) | OwnPath::Scattered(route)) = own
    else {
        return (text, None);
    };
    (text, Some(route))
}

#[cfg(test)]
mod tests {
    use super::super::{Method, RouteTable};
    use super::*;
    use peerweave_core::backend::CollectiveKind;
    use peerweave_types::DType;

    const LIMITS: Limits = Limits { ranks: 2, bank_bytes: 32 << 20, channel_bytes: 1 << 20, max_blocks: 128 };

    fn explain(routes: &Routes, query: &Query, nccl: Result<(), Unfit>) -> String {
        routes.explain(query, &LIMITS, &Libraries { nccl }, "libnccl.so.2 was not found").to_string()
    }

    #[test]
    fn explanation_contains_the_chosen_route_and_the_reason() {
        let routes = Routes::new(RouteTable::builtin("sm_90"));
        let query = Query::new(CollectiveKind::AllReduce, DType::BF16, 512);
        assert_eq!(
            explain(&routes, &query, Err(Unfit::Off)),
            "all_reduce of 512 bfloat16 (1K bytes) by 2 ranks: Peerweave's kernel, algorithm one_shot, 1 block of 64 threads; \
             because the row \"own all_reduce 1-2 8K one_shot 4x128\" of the built-in table sm_90 applies"
        );
        let query = Query::new(CollectiveKind::Scatter, DType::F32, 32 << 20);
        let text = explain(&routes, &query, Ok(()));
        assert!(text.contains("(256M bytes) by 2 ranks: NCCL; because the row \"nccl scatter 2 128M rest\""), "{text}");
        let text = explain(&routes, &query, Err(Unfit::Unavailable));
        assert!(text.contains("Peerweave's kernel that sends messages, 128 blocks of 256 threads"), "{text}");
        assert!(
            text.contains("not used: the row \"nccl scatter 2 128M rest\", because NCCL cannot be used: libnccl.so.2"),
            "{text}"
        );
        let query = Query::new(CollectiveKind::AllToAll, DType::F32, 8 << 20);
        routes.forced.set(CollectiveKind::AllToAll, Some(Method::Messages));
        let text = explain(&routes, &query, Ok(()));
        assert!(text.contains("messages") && text.contains("because the caller chose messages"), "{text}");
    }
}
