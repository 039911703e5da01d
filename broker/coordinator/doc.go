// Package coordinator keeps consumer groups: it loads them from the partitions
// of __consumer_offsets that this broker leads, answers for them, and stores
// every change before it tells anybody.
package coordinator
