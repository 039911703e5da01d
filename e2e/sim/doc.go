// Package sim runs whole clusters in memory, under faults, and looks at every
// replica after every step.
package sim
