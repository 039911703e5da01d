package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

// completeWithin bounds the wait of somebody who pressed the Tab key.
const completeWithin = time.Second

// topics completes the first argument with the names of topics, where a broker
// tells them.
func (a *app) topics(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	conn, err := a.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(c.Context(), completeWithin)
	defer cancel()
	ts, err := conn.NewAdmin().ListTopics(ctx, begun, false)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp // there is no place to say it
	}
	var names []string
	for _, t := range ts {
		names = append(names, t.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
