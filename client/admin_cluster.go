package client

import (
	"context"
	"errors"
	"fmt"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// changeError is for calls that change something: without an answer nobody can
// say whether they did.
func changeError(what string, err error) error {
	err = rpcError(err)
	gone, ok := errors.AsType[*unreachableError](err)
	if ok && gone.lost || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = unknown(err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// failed is the error of a call that was to change something, unless it was only
// tried.
func (o adminOptions) failed(what string, err error) error {
	if o.validateOnly {
		return callError(what, err)
	}
	return changeError(what, err)
}

// A ClusterDescription is the cluster as one broker sees it.
type ClusterDescription struct {
	ID string
	// Version and BrokerID are of the broker that answered.
	Version  string
	BrokerID int32
	Brokers  []BrokerDescription
	// Controller is the active controller's address; empty when the broker
	// knows none.
	Controller      string
	ControllerEpoch int64
	// Controllers are those that the broker was told of, as it found them.
	Controllers []ControllerDescription
	// Topics counts those that are not internal, Partitions those of all.
	Topics     int32
	Partitions int32
}

// A ControllerDescription is one controller.
type ControllerDescription struct {
	Address string
	// State is "active", "standby" or "down".
	State string
	// Problem says why it is down.
	Problem string
}

// A BrokerDescription is one broker.
type BrokerDescription struct {
	ID      int32
	Address string
	Rack    string
	// State is "active", "fenced" or "shutting down".
	State    string
	Epoch    int64
	Version  string
	Leaders  int32
	Replicas int32
}

// DescribeCluster describes brokers and controllers.
func (a *Admin) DescribeCluster(ctx context.Context) (ClusterDescription, error) {
	r, err := a.api.DescribeCluster(ctx, &runnelv1.DescribeClusterRequest{})
	if err != nil {
		return ClusterDescription{}, callError("describe the cluster", err)
	}
	d := ClusterDescription{
		ID: r.GetClusterId(), Version: r.GetVersion(), BrokerID: r.GetBrokerId(), Controller: r.GetController(),
		ControllerEpoch: r.GetControllerEpoch(), Topics: r.GetTopics(), Partitions: r.GetPartitions(),
	}
	for _, c := range r.GetControllers() {
		d.Controllers = append(d.Controllers, ControllerDescription{c.GetAddress(), controllerState(c.GetState()), c.GetProblem()})
	}
	for _, b := range r.GetBrokers() {
		d.Brokers = append(d.Brokers, BrokerDescription{
			ID: b.GetBrokerId(), Address: b.GetAddress(), Rack: b.GetRack(), State: brokerState(b.GetState()),
			Epoch: b.GetBrokerEpoch(), Version: b.GetVersion(), Leaders: b.GetLeaders(), Replicas: b.GetReplicas(),
		})
	}
	return d, nil
}

func controllerState(s runnelv1.ControllerState) string {
	switch s {
	case runnelv1.ControllerState_CONTROLLER_STATE_ACTIVE:
		return "active"
	case runnelv1.ControllerState_CONTROLLER_STATE_STANDBY:
		return "standby"
	case runnelv1.ControllerState_CONTROLLER_STATE_DOWN:
		return "down"
	default:
		return "unknown"
	}
}

func brokerState(s runnelv1.BrokerState) string {
	switch s {
	case runnelv1.BrokerState_BROKER_STATE_ACTIVE:
		return "active"
	case runnelv1.BrokerState_BROKER_STATE_FENCED:
		return "fenced"
	case runnelv1.BrokerState_BROKER_STATE_SHUTTING_DOWN:
		return "shutting down"
	default:
		return "unknown"
	}
}

// Health is what an operator should know.
type Health struct {
	// Healthy is true when no finding is above "info".
	Healthy bool
	// Findings are the worst first.
	Findings []HealthFinding
}

// A HealthFinding is one thing to know.
type HealthFinding struct {
	// Severity is "info", "warning" or "critical".
	Severity string
	// Kind is for programs, such as "offline_partition".
	Kind string
	// Subject is what it is about, such as "orders/3".
	Subject string
	// Message says what is the case, what it means and what to do.
	Message string
}

// CheckHealth tells what is wrong, or will be.
func (a *Admin) CheckHealth(ctx context.Context) (Health, error) {
	r, err := a.api.CheckHealth(ctx, &runnelv1.CheckHealthRequest{})
	if err != nil {
		return Health{}, callError("check health", err)
	}
	h := Health{Healthy: r.GetHealthy()}
	for _, f := range r.GetFindings() {
		severity := "info"
		switch f.GetSeverity() {
		case runnelv1.HealthSeverity_HEALTH_SEVERITY_WARNING:
			severity = "warning"
		case runnelv1.HealthSeverity_HEALTH_SEVERITY_CRITICAL:
			severity = "critical"
		default:
		}
		h.Findings = append(h.Findings, HealthFinding{Severity: severity, Kind: f.GetKind(), Subject: f.GetSubject(), Message: f.GetMessage()})
	}
	return h, nil
}
