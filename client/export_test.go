package client

// Lanes returns the addresses that the producer has a way to, "" for the seeds.
func (p *Producer) Lanes() (to []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for place := range p.lanes {
		to = append(to, string(place))
	}
	return to
}

// Lanes returns the addresses that the reader has a way to, "" for the seeds.
func (r *Reader) Lanes() (to []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for place := range r.lanes {
		to = append(to, string(place))
	}
	return to
}

// Connections returns the advertised addresses that the client has a connection
// for.
func (c *Client) Connections() (to []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr := range c.direct {
		to = append(to, addr)
	}
	return to
}
