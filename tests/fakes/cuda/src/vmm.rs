//! Virtual memory: memory behind handles, reservations of addresses, mappings, rights.
exports! {}
