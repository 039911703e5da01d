package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"

	"github.com/runnelmq/runnel/internal/lifecycle"
)

// Errors about members.
var (
	ErrNoMember   = errors.New("there is no such member")
	ErrMemberLost = errors.New("a member with this address exists already and had data: remove it before it is replaced")
)

// promotePeriod is the time between tries to make a learner a voting member, askTimeout how long one of them may take. etcd
// never answers a change of members that was lost because another member became its leader meanwhile.
const (
	promotePeriod = 500 * time.Millisecond
	askTimeout    = 5 * time.Second
)

// A MemberInfo is an etcd member as the others know it.
type MemberInfo struct {
	ID      string // hexadecimal
	Name    string // "" until it has started for the first time
	Peers   []string
	Clients []string
	Learner bool // it has no vote yet
	Leader  bool
}

// Members returns the members in the order of names.
func (e *Etcd) Members(ctx context.Context) ([]MemberInfo, error) {
	resp, err := e.client.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the members: %w", translate(err))
	}
	leader := uint64(0)
	for _, ep := range e.client.Endpoints() {
		if st, err := e.client.Status(ctx, ep); err == nil {
			leader = st.Leader
			break
		}
	}
	var all []MemberInfo
	for _, m := range resp.Members {
		all = append(all, MemberInfo{
			ID: types.ID(m.GetID()).String(), Name: m.GetName(), Peers: m.GetPeerURLs(), Clients: m.GetClientURLs(), Learner: m.GetIsLearner(), Leader: m.GetID() == leader,
		})
	}
	slices.SortFunc(all, func(a, b MemberInfo) int { return strings.Compare(a.Name+a.ID, b.Name+b.ID) })
	return all, nil
}

// RemoveMember removes the member with a name or an id. etcd refuses it when too few members would be left that live.
func (e *Etcd) RemoveMember(ctx context.Context, which string) error {
	all, err := e.Members(ctx)
	if err != nil {
		return err
	}
	n := slices.IndexFunc(all, func(m MemberInfo) bool { return m.ID == which || (m.Name == which && which != "") })
	if n < 0 {
		var names []string
		for _, m := range all {
			names = append(names, m.Name+" ("+m.ID+")")
		}
		return fmt.Errorf("remove member %q: %w: the members are %s", which, ErrNoMember, strings.Join(names, ", "))
	}
	id, err := strconv.ParseUint(all[n].ID, 16, 64)
	if err != nil {
		return fmt.Errorf("remove member %q: %w", which, err)
	}
	if _, err := e.client.MemberRemove(ctx, id); err != nil {
		return fmt.Errorf("remove member %q: %w", which, translate(err))
	}
	return nil
}

// prepareJoin announces the member to the cluster that it joins, without a vote, and has cfg say so.
func (e Embedded) prepareJoin(ctx context.Context, cfg *embed.Config, log zerolog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, e.Start)
	defer cancel()
	etcd, err := Connect(*e.Join, log)
	if err != nil {
		return err
	}
	defer func() { _ = etcd.Close() }()
	resp, err := etcd.client.MemberList(ctx)
	if err != nil {
		return fmt.Errorf("join: ask %s for the members: %w", strings.Join(e.Join.Endpoints, ", "), translate(err))
	}
	members, mine := resp.Members, e.peerURL()
	n := slices.IndexFunc(members, func(m *etcdserverpb.Member) bool { return slices.Contains(m.GetPeerURLs(), mine) })
	switch {
	case n >= 0 && members[n].GetName() != "":
		// A member that forgot what it voted for must not vote again.
		return fmt.Errorf("join as %s: %w (runnel controller remove %s)", mine, ErrMemberLost, members[n].GetName())
	case n < 0:
		if members, err = etcd.addLearner(ctx, mine, log); err != nil {
			return fmt.Errorf("join as %s: %w", mine, translate(err))
		}
	}
	var all []string
	for _, m := range members {
		for _, u := range m.GetPeerURLs() {
			name := m.GetName()
			if u == mine {
				name = cfg.Name
			} else if name == cfg.Name {
				return fmt.Errorf("join: the name %q is another member's: choose another (etcd.name)", name)
			}
			if name != "" {
				all = append(all, name+"="+u)
			}
		}
	}
	cfg.InitialCluster, cfg.ClusterState = strings.Join(all, ","), embed.ClusterStateFlagExisting
	log.Info().Str("peer", mine).Msg("joining the cluster's etcd")
	return nil
}

// addLearner announces a member, as soon as the others are well enough for that.
func (e *Etcd) addLearner(ctx context.Context, peer string, log zerolog.Logger) ([]*etcdserverpb.Member, error) {
	for said, unsure := "", false; ; {
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		resp, err := e.client.MemberAddAsLearner(ask, []string{peer})
		cancel()
		lost := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
		switch {
		case err == nil:
			return resp.Members, nil
		case unsure && errors.Is(err, rpctypes.ErrPeerURLExist): // what had no answer was done
			list, err := e.client.MemberList(ctx)
			if err != nil {
				return nil, err
			}
			return list.Members, nil
		case lost:
			unsure = true
		case !errors.Is(err, rpctypes.ErrUnhealthy) && !errors.Is(err, rpctypes.ErrTooManyLearners):
			return nil, err // else they were connected for too short a time, or another one is joining
		}
		if err.Error() != said {
			said = err.Error()
			log.Info().Str("peer", peer).Str("answer", said).Msg("waiting to be taken as a member by the cluster's etcd")
		}
		if !lifecycle.Wait(ctx, promotePeriod) {
			return nil, err
		}
	}
}

// promote gives a learner its vote, as soon as it has caught up.
func (e Embedded) promote(ctx context.Context, member *etcdserver.EtcdServer, log zerolog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, e.Start)
	defer cancel()
	if e.Join == nil {
		return errors.New("this member has no vote yet: start it once more with join")
	}
	etcd, err := Connect(*e.Join, log)
	if err != nil {
		return err
	}
	defer func() { _ = etcd.Close() }()
	for {
		// It has its vote when the others say so, and when it knows itself.
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		_, err := etcd.client.MemberPromote(ask, uint64(member.MemberID()))
		cancel()
		voter := err == nil || errors.Is(err, rpctypes.ErrMemberNotLearner)
		if voter && !member.IsLearner() {
			log.Info().Msg("this member of etcd has a vote now")
			return nil
		}
		if !lifecycle.Wait(ctx, promotePeriod) {
			return fmt.Errorf("this member of etcd does not get a vote: %w", translate(err))
		}
	}
}
