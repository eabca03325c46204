// Package emulator runs real servers that speak a cloud store's protocol, for tests, benchmarks and the demo: one
// file for each, and a proxy that makes the network and the server misbehave (FaultProxy).
//
// Each server comes in two forms: RunX for anything with a context, and StartX for tests, which builds the server's
// part first (see package parts) and ends it with the test. All listen on a free loopback port, keep their data in a
// folder of their own, and die with the process that started them.
package emulator
