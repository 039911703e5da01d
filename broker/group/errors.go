// Package group decides who of a consumer group reads which partition, and
// which commits are taken: pure, events in, effects out.
package group

import "errors"

// What a group refuses with. Errors that carry facts wrap one of these and have
// a Metadata method. All are definite: nothing was stored or changed.
var (
	// ErrNotFound: nobody is a member, and nothing was committed. Facts: group.
	ErrNotFound = errors.New("group not found")
	// ErrNotEmpty: the group has members. Facts: group, members.
	ErrNotEmpty = errors.New("the group has members")
	// ErrInvalidID: no group can have this id. Facts: group.
	ErrInvalidID = errors.New("invalid group id")
	// ErrInvalidSubscription: facts: topic or pattern.
	ErrInvalidSubscription = errors.New("invalid subscription")
	// ErrUnknownMember: it never joined, left, or was expelled.
	ErrUnknownMember = errors.New("unknown member")
	// ErrFencedMember: another stream or process has the member's place. Facts:
	// instanceId in the second case.
	ErrFencedMember = errors.New("fenced member")
	// ErrFencedMemberEpoch: the epoch was never given out. Facts: memberEpoch.
	ErrFencedMemberEpoch = errors.New("fenced member epoch")
	// ErrStaleAssignment: the partition is not the member's, or came to it later.
	// Facts: memberEpoch, assignmentEpoch.
	ErrStaleAssignment = errors.New("stale assignment")
	// ErrNotCoordinator: facts: leader, leaderEpoch, address.
	ErrNotCoordinator = errors.New("another broker coordinates the group")
	// ErrLoading: the coordinator is not ready yet, or no longer.
	ErrLoading = errors.New("the coordinator is loading")
	// ErrFull: the group has as many members as it may. Facts: group, maxMembers.
	ErrFull = errors.New("the group is full")
	// ErrUnreadable: stored state can't be read by this version.
	ErrUnreadable = errors.New("the stored state of groups can't be read")
)
