package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(&out, "info", "json")
	if err != nil {
		t.Fatal(err)
	}
	log.Debug().Msg("hidden")
	log.Info().Str("topic", "a").Msg("shown")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if line["topic"] != "a" || line["message"] != "shown" || line["time"] == nil {
		t.Errorf("wrote %v", line)
	}
	for _, c := range [][2]string{{"loud", "json"}, {"", "json"}, {"trace", "json"}, {"info", "xml"}} {
		if _, err := NewLogger(&out, c[0], c[1]); err == nil {
			t.Errorf("took level %q, format %q", c[0], c[1])
		}
	}
}

func TestAdmin(t *testing.T) {
	reg := NewRegistry()
	promauto.With(Prefixed(reg)).NewCounter(prometheus.CounterOpts{Name: "things_total", Help: "Things."}).Add(3)
	var unhealthy, unready error
	h := Admin{Metrics: reg, Healthy: func() error { return unhealthy }, Ready: func() error { return unready }}.Handler()
	get := func(path string) (int, string) {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		return rec.Code, rec.Body.String()
	}
	if code, body := get("/metrics"); code != 200 || !strings.Contains(body, "runnel_things_total 3") || !strings.Contains(body, "go_goroutines") {
		t.Errorf("/metrics = %d", code)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, body := get(path); code != 200 || body != "ok\n" {
			t.Errorf("%s = %d %q", path, code, body)
		}
	}
	unready = errors.New("recovering")
	if code, body := get("/readyz"); code != 503 || body != "recovering\n" {
		t.Errorf("/readyz = %d %q", code, body)
	}
	if code, _ := get("/healthz"); code != 200 {
		t.Errorf("/healthz = %d while not ready", code)
	}
	unhealthy = errors.New("disk failed")
	if code, _ := get("/healthz"); code != 503 {
		t.Errorf("/healthz = %d", code)
	}
	if code, body := get("/debug/pprof/"); code != 200 || !strings.Contains(body, "goroutine") {
		t.Errorf("/debug/pprof/ = %d", code)
	}
}

func TestAdminServesUntilDone(t *testing.T) {
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := (Admin{Metrics: NewRegistry()}).Serve(ctx, lis); err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+lis.Addr().String()+"/healthz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != 200 {
		t.Errorf("status %d, %v", resp.StatusCode, err)
	}
	cancel()
	wg.Wait()
}

// A tired listener fails now and then, as one does without a descriptor left.
type tiredListener struct {
	net.Listener

	failures int
}

// Accept implements net.Listener.
func (l *tiredListener) Accept() (net.Conn, error) {
	if l.failures--; l.failures >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// What goes wrong below HTTP is in the log, as a line of it.
func TestAdminLogsItsTroubles(t *testing.T) {
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	log, err := NewLogger(&out, "info", "json")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := (Admin{Metrics: NewRegistry(), Log: log}).Serve(ctx, &tiredListener{lis, 1}); err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+lis.Addr().String()+"/healthz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	cancel()
	wg.Wait()
	var line map[string]any
	if err := json.Unmarshal([]byte(out.String()), &line); err != nil {
		t.Fatalf("%v: %q", err, out.String())
	}
	if text, _ := line["message"].(string); line["level"] != "warn" || line["part"] != "admin" || !strings.Contains(text, "too many open files") {
		t.Errorf("logged %v", line)
	}
}

// Trouble that comes every second is told when it begins and once a minute, with
// how often it came, and begins anew after its end.
func TestRecurrence(t *testing.T) {
	var r Recurrence
	if _, was := r.Over(); was {
		t.Error("it is over before it began")
	}
	start, told := time.Now(), 0
	for s := range 180 {
		tell, before := r.Again(start.Add(time.Duration(s)*time.Second), time.Minute)
		if tell != (s%60 == 0) || tell && s > 0 && before != 59 || !tell && before != 0 {
			t.Errorf("after %d s: %v, %d before", s, tell, before)
		}
		if tell {
			told++
		}
	}
	if since, was := r.Over(); !was || !since.Equal(start) || told != 3 {
		t.Errorf("over: %v, began %v, told %d times", was, since, told)
	}
	if tell, before := r.Again(start.Add(181*time.Second), time.Minute); !tell || before != 0 {
		t.Errorf("anew: %v, %d before", tell, before)
	}
}
