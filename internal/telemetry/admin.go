package telemetry

import (
	"context"
	"errors"
	stdlog "log" //nolint:depguard // what net/http wants
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
)

// Admin is the HTTP port for operators and their tools: /metrics, /healthz
// (the process lives), /readyz (it can take work) and /debug/pprof.
type Admin struct {
	Metrics prometheus.Gatherer
	// Healthy says why the process should be restarted, nil when it should not.
	Healthy func() error
	// Ready says why no work should be sent here yet, nil when it may.
	Ready func() error
	// Log gets what goes wrong with connections.
	Log zerolog.Logger
}

// Handler serves the admin paths.
func (a Admin) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.Metrics, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, // one bad series must not blind the operator
	}))
	mux.HandleFunc("GET /healthz", probe(a.Healthy))
	mux.HandleFunc("GET /readyz", probe(a.Ready))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// probe answers 200 "ok", or 503 and the reason.
func probe(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if check != nil {
			if err := check(); err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = w.Write([]byte(err.Error() + "\n"))
				return
			}
		}
		_, _ = w.Write([]byte("ok\n"))
	}
}

// warnings makes each line that the HTTP server logs a warning of ours.
type warnings struct{ log zerolog.Logger }

// Write implements io.Writer.
func (w warnings) Write(line []byte) (int, error) {
	w.log.Warn().Str("part", "admin").Msg(strings.TrimSpace(string(line)))
	return len(line), nil
}

// Serve serves the admin paths on lis until ctx is done.
func (a Admin) Serve(ctx context.Context, lis net.Listener) error {
	srv := &http.Server{
		Handler: a.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: stdlog.New(warnings{a.Log}, "", 0),
	}
	stop := context.AfterFunc(ctx, func() {
		// A running profile is worth nothing to a process that ends.
		_ = srv.Close()
	})
	defer stop()
	if err := srv.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
