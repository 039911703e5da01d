package group

// assignRoundRobin deals all partitions in turn, in the order of topic names and
// numbers; who does not read a topic is passed over and keeps its turn in the
// circle.
func assignRoundRobin(readers []Reader) [][]Part {
	out := make([][]Part, len(readers))
	turn := 0
	reads := make([]bool, len(readers))
	for _, d := range demands(readers) {
		clear(reads)
		for _, i := range d.readers {
			reads[i] = true
		}
		for n := range d.topic.Partitions {
			for !reads[turn%len(readers)] {
				turn++
			}
			i := turn % len(readers)
			out[i] = append(out[i], Part{d.topic.ID, n})
			turn++
		}
	}
	return out
}
