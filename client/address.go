package client

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// parseBrokers checks a list of host:port. An IPv6 address goes in brackets.
func parseBrokers(brokers []string) ([]string, error) {
	var (
		addrs []string
		errs  []error
	)
	for _, list := range brokers {
		for b := range strings.SplitSeq(list, ",") {
			b = strings.TrimSpace(b)
			if b == "" {
				continue
			}
			if err := checkAddress(b); err != nil {
				errs = append(errs, fmt.Errorf("broker address %q: %w", b, err))
				continue
			}
			addrs = append(addrs, b)
		}
	}
	if len(addrs) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("no broker address: want host:port, such as 127.0.0.1:7420"))
	}
	return addrs, errors.Join(errs...)
}

func checkAddress(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		why := err.Error()
		if ae, ok := errors.AsType[*net.AddrError](err); ok {
			why = ae.Err
		}
		return fmt.Errorf("%s: want host:port, such as localhost:7420 or [::1]:7420", why)
	}
	if host == "" {
		return errors.New("no host before the port: want host:port, such as localhost:7420")
	}
	if strings.ContainsAny(host, " \t/@") {
		return errors.New("a host has no spaces, slashes or @: want host:port, without a scheme")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("port %q: want a number from 1 to 65535", port)
	}
	return nil
}
