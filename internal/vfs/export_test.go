package vfs

// PendingChanges returns how many changes of entries are not durable.
func (m *Mem) PendingChanges() int {
	m.mu.Lock()
	defer m.mu.Unlock()

	return len(m.pending)
}
