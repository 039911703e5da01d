// Package cases shows, with a real broker and the clients that talk to it, that
// failures which other systems' users reported do not happen here.
//
// Broker, controller and clients share one synctest bubble and a network in
// memory that can lose connections without a word, so minutes of silence cost
// milliseconds. Each test names the case it is about.
package cases
