package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
)

func (a *app) clusterCommand() *cobra.Command {
	return noun("cluster", "Describe the cluster, and tell what is wrong with it", a.clusterDescribe(), a.clusterHealth())
}

type brokerView struct {
	ID       int32  `json:"id"`
	Address  string `json:"address"`
	Rack     string `json:"rack"`
	State    string `json:"state"`
	Epoch    int64  `json:"epoch"`
	Version  string `json:"version"`
	Leaders  int32  `json:"leaders"`
	Replicas int32  `json:"replicas"`
}

type controllerView struct {
	Address string `json:"address"`
	State   string `json:"state"`
	Problem string `json:"problem"`
}

type clusterView struct {
	ID              string           `json:"id"`
	AnsweredBy      int32            `json:"answered_by"`
	Version         string           `json:"version"`
	Controller      string           `json:"controller"`
	ControllerEpoch int64            `json:"controller_epoch"`
	Controllers     []controllerView `json:"controllers"`
	Topics          int32            `json:"topics"`
	Partitions      int32            `json:"partitions"`
	Brokers         []brokerView     `json:"brokers"`
}

func (a *app) clusterDescribe() *cobra.Command {
	return &cobra.Command{
		Use: "describe", Short: "Show brokers and controllers", Args: args(),
		Example: "  runnel cluster describe",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin *client.Admin) error {
				d, err := admin.DescribeCluster(ctx)
				if err != nil {
					return err
				}
				return a.printCluster(d)
			})
		},
	}
}

func (a *app) printCluster(d client.ClusterDescription) error {
	v := clusterView{
		ID: d.ID, AnsweredBy: d.BrokerID, Version: d.Version, Controller: d.Controller, ControllerEpoch: d.ControllerEpoch,
		Topics: d.Topics, Partitions: d.Partitions, Controllers: []controllerView{}, Brokers: []brokerView{},
	}
	for _, c := range d.Controllers {
		v.Controllers = append(v.Controllers, controllerView(c))
	}
	for _, b := range d.Brokers {
		v.Brokers = append(v.Brokers, brokerView(b))
	}
	if a.format == "json" {
		return a.printJSON(v)
	}
	controller := v.Controller
	if controller == "" {
		controller = "none known"
	}
	fmt.Fprintf(a.out, "cluster %s\nanswered by broker %d, version %s\ncontroller %s, epoch %d\ntopics %d, partitions %d\n\n",
		v.ID, v.AnsweredBy, v.Version, controller, v.ControllerEpoch, v.Topics, v.Partitions)
	var rows [][]string
	for _, c := range v.Controllers {
		rows = append(rows, []string{c.Address, c.State, c.Problem})
	}
	if err := table(a.out, "controller state problem", rows); err != nil {
		return err
	}
	fmt.Fprintln(a.out)
	return a.brokerTable(v.Brokers)
}

func (a *app) brokerTable(bs []brokerView) error {
	var rows [][]string
	for _, b := range bs {
		rack := b.Rack
		if rack == "" {
			rack = "-"
		}
		rows = append(rows, []string{fmt.Sprint(b.ID), b.Address, rack, b.State, fmt.Sprint(b.Leaders), fmt.Sprint(b.Replicas), b.Version})
	}
	return table(a.out, "broker address rack state leaders replicas version", rows)
}

type findingView struct {
	Severity string `json:"severity"`
	Kind     string `json:"kind"`
	Subject  string `json:"subject"`
	Message  string `json:"message"`
}

func (a *app) clusterHealth() *cobra.Command {
	return &cobra.Command{
		Use: "health", Short: "Tell what is wrong, or will be; fails when anything is", Args: args(),
		Example: "  runnel cluster health && echo fine",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin *client.Admin) error {
				h, err := admin.CheckHealth(ctx)
				if err != nil {
					return err
				}
				return a.printHealth(h)
			})
		},
	}
}

func (a *app) printHealth(h client.Health) error {
	findings := []findingView{}
	for _, f := range h.Findings {
		findings = append(findings, findingView(f))
	}
	if a.format == "json" {
		err := a.printJSON(struct {
			Healthy  bool          `json:"healthy"`
			Findings []findingView `json:"findings"`
		}{h.Healthy, findings})
		if err != nil {
			return err
		}
	} else {
		for _, f := range findings {
			fmt.Fprintf(a.out, "%s: %s: %s (%s)\n", f.Severity, f.Subject, f.Message, f.Kind)
		}
		if h.Healthy {
			fmt.Fprintln(a.out, "healthy")
		}
	}
	if !h.Healthy {
		return errQuiet
	}
	return nil
}
