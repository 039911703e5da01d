package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/internal/record"
)

func (a *app) logCommand() *cobra.Command {
	return noun("log", "Look into the files of a log, without a server", a.logVerify(), a.logDump())
}

type logSummary struct {
	Files    int    `json:"files"`
	Batches  int64  `json:"batches"`
	Records  int64  `json:"records"`
	Bytes    int64  `json:"bytes"`
	Damage   []spot `json:"damage"`
	Segments int    `json:"-"`
}

func (a *app) logVerify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify PATH",
		Short: "Check every byte of a segment file, a partition, or a whole data directory",
		Long: `Checks the checksums, offsets and records of a segment file, of all segments of
a partition's directory, or of all partitions below a directory, and says where
what is wrong. It changes nothing, and fails when there is damage.

A log that ends within a batch was being written when its process died: the
next start of the node cuts that off, unless it knows the bytes to have been
complete.`,
		Example: "  runnel log verify ./runnel-data",
		Args:    args("PATH"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(_ *cobra.Command, paths []string) error { return a.verify(paths[0]) },
	}
}

func (a *app) verify(path string) error {
	dirs, err := findSegments(path)
	if err != nil {
		return err
	}
	sum := logSummary{Damage: []spot{}}
	var done, records atomic.Int64
	bar := startProgress(a.err, sizeOf(dirs), func() (int64, int64) { return done.Load(), records.Load() })
	defer bar.close()
	for _, files := range dirs {
		s := newScanner(func(f *record.Frame, _ place, payload []byte) error {
			sum.Batches++
			sum.Records += int64(f.Header.RecordCount)
			done.Add(int64(f.Size))
			records.Store(sum.Records)
			return checkRecords(f.Header, payload)
		})
		if err := s.scan(files); err != nil {
			return err
		}
		sum.Files += len(files)
		sum.Bytes += s.bytes
		sum.Damage = append(sum.Damage, s.damage...)
	}
	bar.close()
	if a.format == "json" {
		if err := a.printJSON(sum); err != nil {
			return err
		}
	} else {
		for _, d := range sum.Damage {
			fmt.Fprintf(a.out, "%s: byte %d: %s\n", d.File, d.Position, d.What)
		}
		fmt.Fprintf(a.out, "%s, %s, %s, %s: %s\n",
			counted(int64(sum.Files), "segment"), countedBatches(sum.Batches), counted(sum.Records, "record"), bytesText(sum.Bytes), verdictText(len(sum.Damage)))
	}
	if len(sum.Damage) > 0 {
		return errQuiet
	}
	return nil
}

// sizeOf returns the bytes of all files.
func sizeOf(dirs [][]string) (total int64) {
	for _, files := range dirs {
		for _, name := range files {
			if info, err := os.Stat(name); err == nil { // what is gone is told when it is read
				total += info.Size()
			}
		}
	}
	return total
}

func countedBatches(n int64) string {
	if n == 1 {
		return "1 batch"
	}
	return fmt.Sprintf("%d batches", n)
}

func verdictText(damaged int) string {
	switch damaged {
	case 0:
		return "no damage"
	case 1:
		return "damage in 1 place"
	}
	return fmt.Sprintf("damage in %d places", damaged)
}

// checkRecords decodes every record of a batch.
func checkRecords(h record.Header, payload []byte) error {
	var it record.Iterator
	it.Reset(h, payload)
	for it.Next() {
		_ = it.Record()
	}
	return it.Err()
}

type batchView struct {
	File          string `json:"file"`
	Position      int64  `json:"position"`
	Size          int    `json:"size"`
	BaseOffset    int64  `json:"base_offset"`
	LastOffset    int64  `json:"last_offset"`
	Records       uint32 `json:"records"`
	LeaderEpoch   int64  `json:"leader_epoch"`
	MaxTimestamp  int64  `json:"max_timestamp_ms"`
	AppendTime    int64  `json:"append_time_ms"`
	Compression   string `json:"compression"`
	Transactional bool   `json:"transactional"`
	Control       bool   `json:"control"`
	ProducerID    int64  `json:"producer_id"`
	DeleteHorizon int64  `json:"delete_horizon_ms"`
	PayloadCRC    string `json:"payload_crc32c"`
}

func (a *app) logDump() *cobra.Command {
	var records bool
	var format string
	c := &cobra.Command{
		Use:   "dump PATH",
		Short: "Print the batches, or the records, of a segment file or a directory",
		Long: `Prints a line for each batch of a segment file, of a partition's directory, or of
all partitions below a directory; with --records one for each record instead.
It changes nothing, and fails when there is damage, after printing what can be
read.

--print says what to print of each record:
` + templateHelp + `.
The topic is the name of the directory it lies in.`,
		Example: "  runnel log dump ./runnel-data --records --print '%p/%o %k: %v'",
		Args:    args("PATH"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(_ *cobra.Command, paths []string) error { return a.dump(paths[0], records, format) },
	}
	c.Flags().BoolVar(&records, "records", false, "print records instead of batches")
	c.Flags().StringVar(&format, "print", "%o\t%k\t%v", "what to print of each record, with --records")
	return c
}

func (a *app) dump(path string, records bool, format string) error {
	t, err := parseTemplate(format, "")
	if err != nil {
		return usagef("--print: %w", err)
	}
	dirs, err := findSegments(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(a.out, 64<<10)
	d := &dumper{app: a, w: w, template: t}
	var damage []spot
	for _, files := range dirs {
		each := d.batch
		if records {
			each = d.records
		}
		s := newScanner(each)
		if err := s.scan(files); err != nil {
			return err
		}
		damage = append(damage, s.damage...)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, s := range damage {
		fmt.Fprintf(a.err, "runnel: %s: byte %d: %s\n", s.File, s.Position, s.What)
	}
	if len(damage) > 0 {
		return errQuiet
	}
	return nil
}

type dumper struct {
	app      *app
	w        *bufio.Writer
	template template
	line     []byte
	it       record.Iterator
}

func (d *dumper) batch(f *record.Frame, at place, _ []byte) error {
	h := &f.Header
	v := batchView{
		File: at.file, Position: at.position, Size: f.Size, BaseOffset: int64(h.BaseOffset), LastOffset: int64(h.LastOffset()),
		Records: h.RecordCount, LeaderEpoch: int64(h.LeaderEpoch), MaxTimestamp: h.MaxTimestampMs, AppendTime: h.AppendTimeMs,
		Compression: h.Compression.String(), Transactional: h.Transactional, Control: h.Control,
		ProducerID: int64(h.ProducerID), DeleteHorizon: h.DeleteHorizonMs, PayloadCRC: fmt.Sprintf("%08x", h.PayloadCRC),
	}
	if d.app.format == "json" {
		return jsonLine(d.w, v)
	}
	tombstones := ""
	if v.DeleteHorizon != 0 {
		tombstones = ", tombstones until " + stampMs(v.DeleteHorizon)
	}
	_, err := fmt.Fprintf(d.w, "%s @%d: offsets %d to %d, %s, %d bytes, epoch %d, %s, appended %s%s\n",
		v.File, v.Position, v.BaseOffset, v.LastOffset, counted(int64(v.Records), "record"), v.Size, v.LeaderEpoch, v.Compression, stampMs(v.AppendTime), tombstones)
	return err
}

func (d *dumper) records(f *record.Frame, at place, payload []byte) error {
	d.it.Reset(f.Header, payload)
	for d.it.Next() {
		rec := d.it.Record()
		r := localRecord(&rec, filepath.Base(filepath.Dir(filepath.Dir(at.file))), at.partition, int64(f.Header.LeaderEpoch))
		var err error
		if d.app.format == "json" {
			d.line, err = appendJSON(d.line[:0], &r)
		} else {
			d.line = d.template.append(d.line[:0], &r)
		}
		if err != nil {
			return err
		}
		if _, err := d.w.Write(d.line); err != nil {
			return err
		}
	}
	return d.it.Err()
}
