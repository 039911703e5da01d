package store

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	v3client "go.etcd.io/etcd/client/v3"
)

// slowMembers is an etcd that answers each attempt to add a member as told; nil: never.
type slowMembers struct {
	v3client.Cluster

	answers []error
	members []*etcdserverpb.Member
}

func (c *slowMembers) MemberAddAsLearner(ctx context.Context, peers []string) (*v3client.MemberAddResponse, error) {
	err := c.answers[0]
	c.answers = c.answers[1:]
	switch {
	case errors.Is(err, errDone):
		c.members = append(c.members, &etcdserverpb.Member{PeerURLs: peers})
		return &v3client.MemberAddResponse{Members: c.members}, nil
	case errors.Is(err, errDoneUnheard):
		c.members = append(c.members, &etcdserverpb.Member{PeerURLs: peers})
		err = nil
	}
	if err == nil {
		<-ctx.Done()
		err = ctx.Err()
	}
	return nil, err
}

func (c *slowMembers) MemberList(context.Context, ...v3client.OpOption) (*v3client.MemberListResponse, error) {
	return &v3client.MemberListResponse{Members: c.members}, nil
}

var (
	errDone        = errors.New("done")
	errDoneUnheard = errors.New("done, and nobody is told")
)

// What etcd was asked and never answers, as when its leader changes meanwhile, is asked again, and whoever joins is told what it waits for.
func TestAddLearner(t *testing.T) {
	other := errors.New("no")
	for name, c := range map[string]struct {
		answers []error
		err     error
		within  time.Duration
		log     string
	}{
		"at once":           {[]error{errDone}, nil, time.Second, ""},
		"lost":              {[]error{nil, errDone}, nil, 7 * time.Second, "deadline exceeded"},
		"done and unheard":  {[]error{errDoneUnheard, rpctypes.ErrPeerURLExist}, nil, 7 * time.Second, "deadline exceeded"},
		"another one joins": {[]error{rpctypes.ErrTooManyLearners, rpctypes.ErrTooManyLearners, errDone}, nil, 2 * time.Second, "too many learner"},
		"another's address": {[]error{rpctypes.ErrPeerURLExist}, rpctypes.ErrPeerURLExist, time.Second, ""},
		"refused":           {[]error{other}, other, time.Second, ""},
		"never":             {[]error{nil, nil, nil, nil, nil, nil}, context.DeadlineExceeded, 21 * time.Second, "deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				var log bytes.Buffer
				e, begun := &Etcd{client: &v3client.Client{Cluster: &slowMembers{answers: c.answers}}}, time.Now()
				members, err := e.addLearner(ctx, "http://127.0.0.1:7429", zerolog.New(&log))
				if !errors.Is(err, c.err) || err == nil && len(members) != 1 || time.Since(begun) > c.within {
					t.Errorf("%d members, %v, after %v; want 1, %v, within %v", len(members), err, time.Since(begun), c.err, c.within)
				}
				if got := log.String(); !strings.Contains(got, c.log) || c.log == "" && got != "" || strings.Count(got, "\n") > 1 {
					t.Errorf("the log says\n%s\nwant one line with %q", got, c.log)
				}
			})
		})
	}
}
